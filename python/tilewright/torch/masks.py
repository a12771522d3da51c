"""The library of masks on PyTorch tensors: see `tilewright.masks`."""

from ._library import export as _export

_functions = _export("masks")
globals().update(_functions)
__all__ = sorted(_functions)
