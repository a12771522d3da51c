"""Elements and parts of captured arrays."""

import jax.numpy as jnp
import numpy as np

from ...._errors import UnsupportedError
from ...._numbers import Number
from ...._values import MOST_ELEMENTS, Captured, simplified
from ..._values import apply_all, array_of, clamped, dtype_of, element, objects, part_of
from .loops import choice
from .walker import dtype_out, rule


@rule("dynamic_slice")
def _indexed(w, equation, array, *starts):
    """dynamic_slice, which indexing becomes; static indices have to be in bounds."""
    slice_sizes = equation.params["slice_sizes"]
    for dim, (start, size) in enumerate(zip(starts, slice_sizes, strict=True)):
        start, extent = element(start), array.shape[dim]
        if not isinstance(size, int):
            raise UnsupportedError(f"expected parts of static shapes but got {size} elements")
        if isinstance(start, Number) or not isinstance(extent, int):
            continue
        if not 0 <= start <= extent - size:
            # jnp has already added the extent to a negative index.
            given = int(start) - extent if start < 0 else int(start)
            raise UnsupportedError(
                f"expected an index of {-extent} to {extent - 1} in dimension {dim} of an array of "
                f"shape {tuple(array.shape)} but got {given}",
                kind=IndexError,
            )
    return _slice_at(array, starts, slice_sizes)


def _slice_at(array, starts, slice_sizes):
    starts = [element(s) for s in starts]
    if isinstance(array, Captured):
        return simplified(part_of(array, starts, slice_sizes))
    if any(isinstance(s, Number) for s in starts):
        return _chosen_slice(objects(array), starts, slice_sizes)
    first = [
        min(max(int(s), 0), extent - size)
        for s, size, extent in zip(starts, slice_sizes, array.shape, strict=True)
    ]
    return array[tuple(slice(s, s + size) for s, size in zip(first, slice_sizes, strict=True))]


def _chosen_slice(array, starts, sizes):
    """A slice of a small array at traced starts: selected among all slices along each axis."""
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        slices = [
            array.take(range(first, first + size), axis)
            for first in range(array.shape[axis] - size + 1)
        ]
        dtype = dtype_of(array)
        start = clamped(start, len(slices) - 1) if isinstance(start, Number) else start
        array = (
            objects(choice(element(start), slices, dtype))
            if isinstance(start, Number)
            else slices[min(max(int(start), 0), len(slices) - 1)]
        )
    return array


@rule("slice")
def _slice(w, equation, array):
    params = equation.params
    start_indices, limit_indices = params["start_indices"], params["limit_indices"]
    strides = params["strides"] or [1] * len(start_indices)
    if isinstance(array, Captured):
        sizes = [stop - start for start, stop in zip(start_indices, limit_indices, strict=True)]
        array = part_of(array, [np.int32(s) for s in start_indices], sizes)
        start_indices, limit_indices = [0] * array.ndim, array.shape
    array = array_of(array)
    return array[tuple(map(slice, start_indices, limit_indices, strides))]


def placed(indices, axes, extents, sizes):
    """Where a part of these sizes starts along each dimension, and whether it lies inside, which is
    None without indices."""
    starts, inside = [np.int32(0)] * len(extents), None
    for axis, index in zip(axes, indices, strict=True):
        starts[axis] = index
        last = np.asarray(extents[axis] - sizes[axis], np.int32)[()]
        for test in (
            apply_all("ge", [index, np.int32(0)], np.bool_),
            apply_all("le", [index, last], np.bool_),
        ):
            inside = test if inside is None else apply_all("and", [inside, test], np.bool_)
    return starts, inside


@rule("gather")
def _gather(w, equation, array, indices):
    numbers, slice_sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    mode, dtype = equation.params["mode"], dtype_out(equation)
    indices = array_of(indices)
    if numbers.operand_batching_dims:
        raise UnsupportedError("expected captured arrays to be indexed by scalars but got a vmap")
    if indices.ndim != 1:
        return _gathers(array, indices, lambda *x: _gather(w, equation, *x), numbers)
    starts, inside = placed(indices, numbers.start_index_map, array.shape, slice_sizes)
    part = objects(_slice_at(array, starts, slice_sizes))
    collapsed = numbers.collapsed_slice_dims
    part = part[tuple(0 if axis in collapsed else slice(None) for axis in range(part.ndim))]
    if "fill" not in str(mode).lower():
        return simplified(np.asarray(part, object))
    fill_value = equation.params.get("fill_value")
    if fill_value is None:
        floating = jnp.issubdtype(dtype, jnp.floating)
        fill_value = np.nan if floating else jnp.iinfo(dtype).min
        fill_value = jnp.iinfo(dtype).max if dtype.kind == "u" else fill_value
    fill = np.asarray(fill_value, dtype)[()]
    return apply_all("where", [inside, simplified(np.asarray(part, object)), fill], dtype)


def _gathers(array, indices, gather, numbers):
    """One gather per vector of indices, as a small array."""
    batch = indices.shape[:-1]
    if np.prod(batch) > MOST_ELEMENTS:
        raise UnsupportedError(f"expected at most {MOST_ELEMENTS} indices of a captured array")
    parts = [objects(gather(array, indices[place])) for place in np.ndindex(*batch)]
    if not parts:
        raise UnsupportedError("expected at least one element of a captured array")
    whole = np.stack(parts).reshape(*batch, *parts[0].shape)
    batch_axes = iter(range(len(batch)))
    order = [
        len(batch) + numbers.offset_dims.index(d) if d in numbers.offset_dims else next(batch_axes)
        for d in range(whole.ndim)
    ]
    return simplified(whole.transpose(order))
