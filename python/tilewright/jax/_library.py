"""The mask and score libraries on JAX arrays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core, _functions
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
        given = {}  # arrays by capture name
        passed = [_argument(name, x, given) for x in arguments]
        named = {key: _argument(name, x, given) for key, x in options.items()}
        with refusing(name, core, arguments, options):
            return from_core(core(*passed, **named).renamed(name), given)

    function.__signature__ = signature_of(name, core)
    return function


def _argument(name, value, given):
    """An argument as the core's function takes it."""
    if isinstance(value, np.ndarray | jax.Array):
        return _capture(name, value, given)
    if callable(value):
        traced = _mods.trace(name, "the mask", value, True, _functions.Sizes(*[None] * 4))
        return _mods.core_mod(traced, [_capture(name, x, given) for x in traced.arrays])
    return value.item() if isinstance(value, np.generic) else value


def _capture(name, array, given):
    key = f"{name}{len(given)}"
    given[key] = jnp.asarray(array)
    if isinstance(array, jax.core.Tracer):
        return _mods.stand_in(key, array).core
    return _core.capture(to_tensor(name, "an array", np.asarray(array)), key, True)
