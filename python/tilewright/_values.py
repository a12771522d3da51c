"""What mods compute with while they are traced.

A value is one of
- a NumPy array of numbers: a constant;
- a `Number`: a traced scalar;
- an object array of numbers and constants: a small array, such as a row of a captured one;
- a `Captured` array: whole until elements of it are read;
- a `Scattered` array: the gradient of a captured array.
"""

import numpy as np

from . import _core
from ._errors import UnsupportedError
from ._numbers import Number, Numbers, operand

MOST_ELEMENTS = 4096  # the most elements of a small array
_UNKNOWN = 1 << 30  # stands for a symbolic extent


class Captured:
    """An array that the mod reads."""

    def __init__(self, values, name, shape, dtype):
        """Stands for any array of this dtype and shape: a mod depends on nothing else."""
        self._values = values
        self.name, self.shape, self.dtype = name, tuple(shape), dtype
        element = np.zeros(1)  # at least as wide as any dtype
        tensor = _core.Tensor.from_memory(
            element.__array_interface__["data"][0],
            values.dtypes.name(dtype),
            [extent if isinstance(extent, int) else _UNKNOWN for extent in shape],
            [0] * len(shape),
            element,
        )
        self.core = _core.capture(tensor, name, values.dtypes.is_float(dtype))

    def element(self, index, wraps=False):
        """The element at traced or constant indices, clamped. Negative ones become 0; with `wraps`
        they count from the end, and constant ones out of bounds are errors."""
        read = self.core.element if wraps else self.core.clamped_element
        core = read(tuple(map(operand, index))) if index else self.core.value()
        return self._values.number(core, self.dtype, self._values.dtypes.loaded)

    def inside(self, index):
        """Indices of the array, clamped, as the core takes them."""
        pairs = zip(index, self.shape, strict=True)
        clamped = self._values.clamped
        return [operand(self._values.element(clamped(i, extent - 1))) for i, extent in pairs]


class Scattered:
    """The gradient of a captured array: the sum of (index, value) `entries` over zeros."""

    def __init__(self, shape, dtype, entries=()):
        self.shape, self.dtype, self.entries = tuple(shape), dtype, list(entries)


class Values(Numbers):
    """Operations on values with the dtypes of one framework."""

    def captured(self, name, shape, dtype):
        return Captured(self, name, shape, dtype)

    def element(self, value):
        """A value of rank 0: a Number or a constant."""
        if isinstance(value, Scattered):
            return self._small(value)[()]
        if isinstance(value, Captured):
            if value.shape:
                raise UnsupportedError(
                    f"expected a mod of scalar operations but got all of a captured array of shape "
                    f"{value.shape}; index it"
                )
            return value.element(())
        return value[()] if isinstance(value, np.ndarray) else value

    def array_of(self, value):
        """The value as an array, constant or small."""
        if isinstance(value, Scattered):
            return self._small(value)
        if isinstance(value, Captured):
            return self.part_of(value, [0] * len(value.shape), value.shape)
        if isinstance(value, Number):
            wrapped = np.empty((), object)
            wrapped[()] = value
            return wrapped
        return np.asarray(value)

    def objects(self, value):
        """The value as an array of numbers and constants."""
        array = self.array_of(value)
        if array.dtype == object:
            return array
        result = np.empty(array.shape, object)
        for index in np.ndindex(*array.shape):
            result[index] = array[index]
        return result

    def elementwise(self, function, inputs):
        """`function` on scalars, element by element where inputs are arrays."""
        if all(getattr(x, "ndim", 0) == 0 and not getattr(x, "shape", ()) for x in inputs):
            return function(*map(self.element, inputs))
        arrays = [self.objects(x) for x in inputs]
        results = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)), object)
        arrays = [np.broadcast_to(a, results.shape) for a in arrays]
        for index in np.ndindex(*results.shape):
            results[index] = function(*(a[index] for a in arrays))
        return results

    def apply_all(self, name, inputs, dtype):
        """An operation of ELEMENTWISE, element by element."""

        def function(*elements):
            if any(isinstance(x, Number) for x in elements):
                return self.apply(name, elements, dtype)
            if name == "where":
                return self.dtypes.convert(elements[1] if elements[0] else elements[2], dtype)
            return self.dtypes.evaluate(name, elements, dtype)

        return self.elementwise(function, inputs)

    def index(self, place):
        """A constant index."""
        return self.dtypes.constant(place, self.dtypes.index)

    def clamped(self, start, most):
        bounds = self.index(0), self.index(most)
        return self.apply_all("clamp", [bounds[0], start, bounds[1]], self.dtypes.index)

    def shifted(self, start, step):
        if not step:
            return start
        return self.apply_all("add", [start, self.index(step)], self.dtypes.index)

    def part_of(self, array, starts, sizes):
        """A small array: part of another, from traced starts that are clamped so that it fits."""
        result = np.empty(tuple(sizes), object)
        if result.size > MOST_ELEMENTS:
            raise UnsupportedError(
                f"expected parts of captured arrays of at most {MOST_ELEMENTS} elements"
            )
        first = [
            self.element(start) if size == 1 else self.clamped(start, extent - size)
            for start, size, extent in zip(starts, sizes, array.shape, strict=True)
        ]
        for offset in np.ndindex(*result.shape):
            result[offset] = array.element(
                [
                    self.element(self.shifted(start, step))
                    for start, step in zip(first, offset, strict=True)
                ]
            )
        return result

    def _small(self, gradient):
        """The gradient as a small array, for an array that turned out not to be captured."""
        if np.prod(gradient.shape) > MOST_ELEMENTS or any(
            isinstance(i, Number) for index, _ in gradient.entries for i in index
        ):
            raise UnsupportedError("expected gradients of captured arrays to be added up alone")
        zero = self.dtypes.constant(0, gradient.dtype)
        array = self.objects(np.full(gradient.shape, zero))
        for index, value in gradient.entries:
            place = tuple(int(i) for i in index)
            array[place] = self.element(
                self.apply_all("add", [array[place], value], gradient.dtype)
            )
        return array


def is_constant(value):
    return isinstance(value, np.ndarray | np.generic) and value.dtype != object


def simplified(array):
    """The scalar in an object array of rank 0; other arrays as they are."""
    return array[()] if array.ndim == 0 else array
