"""The library of scores on PyTorch tensors: see `tilewright.scores`."""

from .._library import compose as compose
from ._library import export as _export

_functions = _export("scores")
globals().update(_functions)
__all__ = sorted([*_functions, "compose"])
