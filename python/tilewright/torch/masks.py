"""The library of masks on PyTorch tensors: see `tilewright.masks`."""

from ._library import export

_functions = export("masks")
globals().update(_functions)
__all__ = sorted(_functions)
