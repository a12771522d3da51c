"""The core's mods as JAX functions: one primitive inside the user's mod.

The back end for mods replaces it by the mod's text.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from .. import _core
from .._arrays import to_array, to_tensor
from .._functions import Mod

_mod_p = Primitive("tilewright_mod")


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


@_mod_p.def_abstract_eval
def _abstract_eval(*operands, mod, arrays):
    dtype = np.dtype(np.bool_) if mod.is_mask else operands[arrays].dtype
    return operands[arrays].update(shape=(), dtype=dtype, weak_type=False)


@_mod_p.def_impl
def _evaluate(*operands, mod, arrays):
    """Evaluates one pair, outside of a mod."""
    captures = [
        _core.capture(to_tensor(mod.name, "an array", np.asarray(x)), "", False)
        for x in operands[:arrays]
    ]
    scalars = [np.asarray(x).item() for x in operands[arrays:]]
    dtype = np.dtype(np.bool_) if mod.is_mask else operands[arrays].dtype
    wide = not mod.is_mask and dtype == np.float64
    return jnp.asarray(_core.Mod.from_ir(mod.texts[wide], captures)(*scalars), dtype)


def _refuse_batch(operands, dims, *, mod, arrays):
    raise NotImplementedError(
        f"[{mod.name}] expected to be called on scalars inside a mod but got vmap"
    )


def _refuse_derivative(primals, tangents, *, mod, arrays):
    raise NotImplementedError(
        f"[{mod.name}] expected to stand beside no custom derivative in one mod: write it in jnp"
    )


ad.primitive_jvps[_mod_p] = _refuse_derivative
batching.primitive_batchers[_mod_p] = _refuse_batch


def from_core(mod, given=None):
    """A mod of the NumPy front end, such as `tilewright.parse_mod` returns, for JAX."""
    arrays = [_array(mod.name, capture, given or {}) for capture in mod.captures()]
    texts = (mod.ir(), mod.ir() if mod.is_mask else mod.ir("f64"))
    made = LibraryMod(mod.name, mod.is_mask, texts)

    return _of_made(made, arrays)


def _of_made(made, arrays):
    """A library's mod on JAX arrays."""

    def apply(*scalars):
        first = () if made.is_mask else (_as_score(scalars[0]),)
        positions = (jnp.asarray(s, jnp.int32) for s in scalars[len(first) :])
        return _mod_p.bind(*arrays, *first, *positions, mod=made, arrays=len(arrays))

    named = {made.name if len(arrays) == 1 else f"{made.name}{i}": x for i, x in enumerate(arrays)}
    return Mod(apply, made.is_mask, made.name, (_of_made, (made, arrays)), named)


def _as_score(value):
    value = jnp.asarray(value)
    return value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(jnp.float32)


def _array(name, capture, given):
    if capture.name in given:
        return given[capture.name]
    if any(isinstance(x, jax.core.Tracer) for x in given.values()):
        raise TypeError(
            f"[{name}] expected its arrays at hand, since it computes with their values, but they "
            "are traced"
        )
    with jax.ensure_compile_time_eval():
        return jnp.asarray(to_array(capture.tensor).copy())
