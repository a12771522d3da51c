"""Mods of the core as functions of tensors: recorded inside a mod, evaluated outside."""

import dataclasses

import numpy as np
import torch

from .. import _core
from .._arrays import to_array, to_tensor
from .._functions import Mod
from . import _recorder


@dataclasses.dataclass(frozen=True)
class LibraryMod:
    """What a library function gave: a mod as text, for scores of each width."""

    name: str
    is_mask: bool
    texts: tuple  #: f32, f64

    def apply(self, captures, scalars):
        """The mod on captures and scalars of the core."""
        wide = not self.is_mask and scalars[0].dtype == "f64"
        return _core.Mod.from_ir(self.texts[wide], captures)(*scalars)

    def __tilewright_environment__(self):
        return (self.texts,)


def from_core(mod, given=None):
    """A mod of the NumPy front end, as `tilewright.parse_mod` gives it, for PyTorch."""
    arrays = [_tensor(capture, given or {}) for capture in mod.captures()]
    texts = (mod.ir(), mod.ir() if mod.is_mask else mod.ir("f64"))
    return _of_made(LibraryMod(mod.name, mod.is_mask, texts), arrays)


def _of_made(made, arrays):
    """The mod of a library's on tensors."""
    return Mod(_Application(made, arrays), made.is_mask, made.name, (_of_made, (made, arrays)))


class _Application:
    """Applies a mod of a library's: recorded inside a mod, evaluated outside."""

    def __init__(self, made, arrays):
        self._made, self._arrays = made, arrays

    def __tilewright_environment__(self):
        return self._made, self._arrays

    def __call__(self, *scalars):
        recorder = _recorder.current()
        if recorder is None:
            return _evaluate(self._made, self._arrays, scalars)
        return recorder.library(self._made, self._arrays, scalars)


def _evaluate(made, arrays, scalars):
    """One pair, outside of a mod."""
    if any(isinstance(x, torch.Tensor) and x.dim() > 0 for x in scalars):
        raise NotImplementedError(
            f"[{made.name}] expected numbers, or to be called inside a mod, but got tensors with "
            "dimensions"
        )
    dtype = torch.float64 if getattr(scalars[0], "dtype", None) == torch.float64 else torch.float32
    text = made.texts[dtype == torch.float64 and not made.is_mask]
    captures = [
        _core.capture(to_tensor(made.name, "a tensor", x.detach().cpu()), "", False) for x in arrays
    ]
    values = [x.item() if isinstance(x, torch.Tensor | np.generic) else x for x in scalars]
    result = _core.Mod.from_ir(text, captures)(*values)
    return torch.tensor(result, dtype=torch.bool if made.is_mask else dtype)


def _tensor(capture, given):
    if capture.name in given:
        return given[capture.name]
    return torch.from_numpy(to_array(capture.tensor).copy())
