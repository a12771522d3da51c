"""What the interpreter of jaxprs computes with.

A value is one of
- a NumPy array of numbers: a constant;
- a `Number`: a traced scalar;
- an object array of numbers and constants: a small array, such as a row of a captured one;
- a `Captured` array: whole until something reads elements of it;
- a `Scattered` array: the gradient of a captured one.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core
from .._arrays import dtype_name
from ._numbers import Number, RefusedError, apply, number, operand

MOST_ELEMENTS = 4096  # of a small array
_LOADED = 1 << 29  # int32 elements of arrays are taken to be below this, so that sums of two fit


class Captured:
    """An array that the mod reads."""

    def __init__(self, name, shape, dtype):
        """Stands for any array of this dtype and shape: a mod depends on nothing else."""
        self.name, self.shape, self.dtype = name, tuple(shape), np.dtype(dtype)
        element = np.zeros(1, self.dtype)
        tensor = _core.Tensor.from_memory(
            element.__array_interface__["data"][0],
            dtype_name("mod", "captured arrays", self.dtype),
            list(shape),
            [0] * len(shape),
            element,
        )
        self.core = _core.capture(tensor, name, jnp.issubdtype(self.dtype, jnp.floating))

    def element(self, index):
        """The element at traced or constant indices, clamped."""
        core = self.core.element(tuple(map(operand, index))) if index else self.core.value()
        return number(core, self.dtype, (-_LOADED, _LOADED))

    def inside(self, index):
        """Indices of the array, clamped, as the core takes them."""
        pairs = zip(index, self.shape, strict=True)
        return [operand(element(clamped(i, extent - 1))) for i, extent in pairs]


class Scattered:
    """The gradient of a captured array: zero but for `entries`, (index, value) each, which add up."""

    def __init__(self, shape, dtype, entries=()):
        self.shape, self.dtype, self.entries = tuple(shape), np.dtype(dtype), list(entries)

    def small(self):
        """As a small array, for what was no gradient of a captured one after all."""
        if np.prod(self.shape) > MOST_ELEMENTS or any(
            isinstance(i, Number) for index, _ in self.entries for i in index
        ):
            raise RefusedError("expected gradients of captured arrays to be added up alone")
        array = objects(np.zeros(self.shape, self.dtype))
        for index, value in self.entries:
            place = tuple(int(i) for i in index)
            array[place] = element(apply_all("add", [array[place], value], self.dtype))
        return array


def is_constant(value):
    return isinstance(value, np.ndarray | np.generic) and value.dtype != object


def element(value):
    """A value of rank 0: a Number or a NumPy scalar."""
    if isinstance(value, Scattered):
        return value.small()[()]
    if isinstance(value, Captured):
        if value.shape:
            raise RefusedError(
                f"expected a mod of scalar operations but got all of a captured array of shape "
                f"{value.shape}; index it"
            )
        return value.element(())
    return value[()] if isinstance(value, np.ndarray) else value


def array_of(value):
    """The value as an array, constant or small."""
    if isinstance(value, Scattered):
        return value.small()
    if isinstance(value, Captured):
        return part_of(value, [0] * len(value.shape), value.shape)
    if isinstance(value, Number):
        wrapped = np.empty((), object)
        wrapped[()] = value
        return wrapped
    return np.asarray(value)


def objects(value):
    """The value as an array of numbers and NumPy scalars."""
    array = array_of(value)
    if array.dtype == object:
        return array
    result = np.empty(array.shape, object)
    for index in np.ndindex(*array.shape):
        result[index] = array[index]
    return result


def simplified(array):
    """A scalar for an object array of rank 0."""
    return array[()] if array.ndim == 0 else array


def elementwise(function, inputs):
    """`function` on scalars, element by element where inputs are arrays."""
    if all(getattr(x, "ndim", 0) == 0 and not getattr(x, "shape", ()) for x in inputs):
        return function(*map(element, inputs))
    arrays = [objects(x) for x in inputs]
    results = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)), object)
    arrays = [np.broadcast_to(a, results.shape) for a in arrays]
    for index in np.ndindex(*results.shape):
        results[index] = function(*(a[index] for a in arrays))
    return results


def apply_all(name, inputs, dtype):
    def function(*elements):
        if any(isinstance(x, Number) for x in elements):
            return apply(name, elements, dtype)
        return _constant_element(name, elements, dtype)

    return elementwise(function, inputs)


def _constant_element(name, elements, dtype):
    """The same on constants that stand among traced elements of an array."""
    if name == "where":
        return np.asarray(elements[1] if elements[0] else elements[2], dtype)[()]
    with jax.ensure_compile_time_eval():
        return np.asarray(getattr(jax.lax, _LAX.get(name, name))(*elements)).astype(dtype)[()]


_LAX = {
    **{"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"},
    "add_any": "add",
}


def literal(value):
    """A constant; a random key, which is no array of NumPy, is left to what refuses it."""
    is_key = jax.dtypes.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.extended)
    return value if is_key else np.asarray(value)


def clamped(start, most):
    return apply_all("clamp", [np.int32(0), start, np.int32(most)], np.int32)


def shifted(start, step):
    return apply_all("add", [start, np.int32(step)], np.int32) if step else start


def part_of(array, starts, sizes):
    """A small array: elements from traced starts on. XLA moves starts so that the part fits."""
    result = np.empty(tuple(sizes), object)
    if result.size > MOST_ELEMENTS:
        raise RefusedError(f"expected parts of captured arrays of at most {MOST_ELEMENTS} elements")
    first = [
        element(start) if size == 1 else clamped(start, extent - size)
        for start, size, extent in zip(starts, sizes, array.shape, strict=True)
    ]
    for offset in np.ndindex(*result.shape):
        result[offset] = array.element(
            [element(shifted(start, step)) for start, step in zip(first, offset, strict=True)]
        )
    return result
