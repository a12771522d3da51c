"""The library of scores on PyTorch tensors: see `tilewright.scores`."""

from ._library import export

_functions = export("scores")
globals().update(_functions)
__all__ = sorted(_functions)
