"""JAX's dtypes for traced values, and the operations on them."""

import jax
import jax.numpy as jnp
import numpy as np

from .._arrays import dtype_name
from .._numbers import Dtypes, Number
from .._values import Values
from ._jaxpr.walker import JAX_DTYPES

_LOADED = 1 << 29  # assumed bound of int32 array elements, so that sums of two fit


class _JaxDtypes(Dtypes):
    index = np.dtype(np.int32)
    boolean = np.dtype(np.bool_)
    loaded = (-_LOADED, _LOADED)

    def name(self, dtype):
        return dtype_name("mod", "captured arrays", dtype)

    def is_float(self, dtype):
        return jnp.issubdtype(dtype, jnp.floating)

    def carried(self, dtype):
        dtype = jnp.dtype(dtype)
        return "i64" if dtype == np.int32 else dtype_name("mod", "values", dtype)

    def limits(self, dtype):
        if not jnp.issubdtype(dtype, jnp.integer):
            return None
        info = jnp.iinfo(dtype)
        return int(info.min), int(info.max)

    def wrapped(self, core, dtype):
        return core.cast("i32").cast("i64") if jnp.dtype(dtype) == np.int32 else core

    def constant(self, value, dtype):
        return np.asarray(value, jnp.dtype(dtype))[()]

    def convert(self, constant, dtype):
        with jax.ensure_compile_time_eval():
            return np.asarray(jnp.asarray(constant).astype(dtype))[()]

    def evaluate(self, name, constants, dtype):
        with jax.ensure_compile_time_eval():
            result = getattr(jax.lax, _LAX.get(name, name))(*constants)
            return np.asarray(result).astype(dtype)[()]


_LAX = {
    **{"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"},
    "add_any": "add",
}

_values = Values(_JaxDtypes())
number, convert = _values.number, _values.convert
captured, part_of = _values.captured, _values.part_of
element, array_of, objects = _values.element, _values.array_of, _values.objects
elementwise, apply_all = _values.elementwise, _values.apply_all
clamped, shifted = _values.clamped, _values.shifted


def literal(value):
    """A constant; a random key, which is not a NumPy array, is passed on to be refused later."""
    is_key = jax.dtypes.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.extended)
    return value if is_key else np.asarray(value)


def dtype_of(array):
    """The JAX dtype of an array of numbers and constants."""
    first = array.flat[0]
    if not isinstance(first, Number):
        return first.dtype
    # int32 is carried as i64; a mod has no int64.
    return np.dtype(np.int32) if first.core.dtype == "i64" else JAX_DTYPES[first.core.dtype]
