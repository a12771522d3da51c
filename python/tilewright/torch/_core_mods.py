"""The core's mods as functions of tensors: recorded inside a mod, evaluated outside of one."""

import dataclasses

import numpy as np
import torch

from .. import _core
from .._arrays import to_array, to_tensor
from .._functions import Mod
from . import _ops, _recorder, _rules


@dataclasses.dataclass(frozen=True)
class LibraryMod:
    """A mod that a library function made, as text for scores of each width."""

    name: str
    is_mask: bool
    texts: tuple  #: f32, f64

    def apply(self, captures, scalars):
        """Applies the mod to the core's captures and scalars."""
        wide = not self.is_mask and scalars[0].dtype == "f64"
        return _core.Mod.from_ir(self.texts[wide], captures)(*scalars)

    def __tilewright_environment__(self):
        return (self.texts,)


def from_core(mod, given=None):
    """A mod of the NumPy front end, such as `tilewright.parse_mod` returns, for PyTorch."""
    arrays = [_tensor(capture, given or {}) for capture in mod.captures()]
    texts = (mod.ir(), mod.ir() if mod.is_mask else mod.ir("f64"))
    return _of_made(LibraryMod(mod.name, mod.is_mask, texts), arrays)


def _of_made(made, arrays):
    """A library's mod on tensors."""
    return Mod(_Application(made, arrays), made.is_mask, made.name, (_of_made, (made, arrays)))


class _Application:
    """Applies a library's mod: recorded inside a mod, evaluated outside of one."""

    def __init__(self, made, arrays):
        self._made, self._arrays = made, arrays

    def __tilewright_environment__(self):
        return self._made, self._arrays

    def __call__(self, *scalars):
        if torch.compiler.is_dynamo_compiling():
            made, tensors = self._made, [_as_tensor(x) for x in scalars]
            return _operator(self._arrays, tensors, made.name, made.is_mask, *made.texts)
        recorder = _recorder.current()
        if recorder is None:
            return _evaluate(self._made, self._arrays, scalars)
        return recorder.library(self._made, self._arrays, scalars)


# Stands for a library's mod in a compiled region until its graph is recorded.
_ops.library.define(
    "library_mod(Tensor[] arrays, Tensor[] scalars, str name, bool is_mask, str text, str wide)"
    " -> Tensor",
    tags=_ops.TAGS,
)
_operator = torch.ops.tilewright.library_mod.default


def _as_tensor(x):
    return x if isinstance(x, torch.Tensor) else torch.tensor(x)


def _run(arrays, scalars, name, is_mask, *texts):
    if _recorder.current() is not None:  # only asks for the result's type
        return _fake(arrays, scalars, name, is_mask, *texts)
    result = _evaluate(LibraryMod(name, is_mask, texts), arrays, scalars)
    return result.to(scalars[0].device)


def _fake(arrays, scalars, name, is_mask, *texts):
    return scalars[0].new_empty((), dtype=torch.bool if is_mask else scalars[0].dtype)


for _key in ("CPU", "CUDA"):
    _ops.library.impl("library_mod", _run, _key)
torch.library.register_fake("tilewright::library_mod", _fake, lib=_ops.library)


@_rules.rule("tilewright::library_mod")
def _recorded(recorder, out, arrays, scalars, name, is_mask, *texts):
    return recorder.library(LibraryMod(name, is_mask, texts), arrays, scalars).value


def _evaluate(made, arrays, scalars):
    """Evaluates one pair, outside of a mod."""
    if any(isinstance(x, torch.Tensor) and x.dim() > 0 for x in scalars):
        raise NotImplementedError(
            f"[{made.name}] expected numbers, or to be called inside a mod, but got tensors with "
            "dimensions"
        )
    dtype = torch.float64 if getattr(scalars[0], "dtype", None) == torch.float64 else torch.float32
    text = made.texts[dtype == torch.float64 and not made.is_mask]
    captures = [
        _core.capture(to_tensor(made.name, "a tensor", x.detach().cpu().resolve_neg()), "", False)
        for x in arrays
    ]
    values = [x.item() if isinstance(x, torch.Tensor | np.generic) else x for x in scalars]
    result = _core.Mod.from_ir(text, captures)(*values)
    return torch.tensor(result, dtype=torch.bool if made.is_mask else dtype)


def _tensor(capture, given):
    if capture.name in given:
        return given[capture.name]
    return torch.from_numpy(to_array(capture.tensor).copy())
