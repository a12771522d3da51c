"""Gradients of captured arrays: lists of elements to add, in derivatives by JAX."""

import numpy as np

from ...._errors import UnsupportedError
from ...._numbers import unrounded
from ...._values import Scattered, simplified
from ..._values import apply_all, clamped, element, objects, shifted
from .captures import placed
from .walker import ModWalker


def _rule(*names):
    """Registers the rule of a primitive for a gradient as its first operand."""

    def register(function):
        ModWalker.gradients.update(dict.fromkeys(names, function))
        return function

    return register


@_rule("add_any", "add")
def _add(w, equation, a, b):
    if not isinstance(b, Scattered):
        raise UnsupportedError("expected gradients of captured arrays to be added up alone")
    return Scattered(a.shape, a.dtype, a.entries + b.entries)


def _put(array, start, part):
    """`part`, a small array, put into a gradient that is still zero."""
    part = objects(part)
    if array.entries:
        raise UnsupportedError("expected gradients of captured arrays to be added up alone")
    first = [
        element(s) if size == 1 else clamped(s, extent - size)
        for s, size, extent in zip(start, part.shape, array.shape, strict=True)
    ]
    entries = [
        ([element(shifted(s, step)) for s, step in zip(first, offset, strict=True)], part[offset])
        for offset in np.ndindex(*part.shape)
    ]
    return Scattered(array.shape, array.dtype, entries)


@_rule("dynamic_update_slice")
def _dynamic_update_slice(w, equation, array, part, *start):
    return _put(array, start, part)


@_rule("scatter-add")
def _scatter_add(w, equation, array, indices, part):
    numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
    indices = objects(indices)
    if indices.ndim != 1 or numbers.operand_batching_dims:
        raise UnsupportedError(
            "expected captured arrays to be indexed by scalars but got a scatter"
        )
    part = np.expand_dims(objects(part), tuple(numbers.inserted_window_dims))
    axes = numbers.scatter_dims_to_operand_dims
    start, inside = placed(indices, axes, array.shape, part.shape)
    if inside is not None and "fill" in str(mode).lower():
        wide = np.result_type(array.dtype, np.float32)  # round the sums, not the summands
        part = simplified(np.array([unrounded(x) for x in part.flat], object).reshape(part.shape))
        part = objects(apply_all("where", [inside, part, np.zeros((), wide)[()]], wide))
    return _put(array, start, part)


@_rule("convert_element_type")
def _convert(w, equation, array):
    return Scattered(array.shape, equation.params["new_dtype"], array.entries)
