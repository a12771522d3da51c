"""The mask and score libraries on PyTorch tensors."""

import functools

import numpy as np
import torch

from .. import _core
from .._arrays import to_tensor
from .._library import refusing, signature_of
from . import _mods
from ._core_mods import from_core


def export(library):
    """{name: function} for every function of a submodule of the core."""
    core = getattr(_core, library)
    return {
        name: _wrapped(name, function)
        for name, function in vars(core).items()
        if callable(function) and not name.startswith("_")
    }


def _wrapped(name, core):
    @functools.wraps(core, updated=())
    def function(*arguments, **options):
        if torch.compiler.is_dynamo_compiling():
            raise NotImplementedError(
                f"[{name}] expected to be called outside of a compiled region: make the mod there, "
                "or write it as a function of tensors"
            )
        given = {}  # tensors by capture name
        passed = [_argument(name, x, given) for x in arguments]
        named = {key: _argument(name, x, given) for key, x in options.items()}
        with refusing(name, core, arguments, options):
            return from_core(core(*passed, **named).renamed(name), given)

    function.__signature__ = signature_of(name, core)
    return function


def _argument(name, value, given):
    """An argument as the core's function takes it."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        return _capture(name, value, given)
    if callable(value):
        if isinstance(value, _core.Mod):
            return value
        traced = _mods.record(name, "the mask", value, True, None)
        return _core.Mod.from_ir(traced.text, [_capture(name, x, given) for x in traced.arrays])
    return value.item() if isinstance(value, np.generic) else value


def _capture(name, tensor, given):
    key = f"{name}{len(given)}"
    given[key] = tensor
    return _core.capture(to_tensor(name, "a tensor", tensor.detach().resolve_neg()), key, True)
