"""Rules of primitives that access elements at traced positions: a tile has no addresses, so it goes
through the program's memory."""

from ...._dtypes import bits_of, is_float
from ...._errors import UnsupportedError
from .arithmetic import broadcast, cast, elementwise, total
from .refs import Dim, View, atomic, i64, load, store
from .shapes import check_tile, padded, reshape, sliced, transpose
from .translate import aval_of, rule


def spilled(t, value):
    """A Ref to the program's memory, holding the tile."""
    view = t.scratch(value.dtype, value.shape)
    store(t, view, value)
    return view


def _clamped(t, start, room):
    start = i64(t, start)
    if start.is_constant:
        return t.number(min(max(start.constant, 0), room), "i64")
    operands = [start, t.number(0, "i64"), t.number(room, "i64")]
    return t.program.emit("clamp", operands, "i64", ())


def _window(t, view, starts, sizes):
    dims = [
        Dim("slice", _clamped(t, start, extent - size), size)
        for start, size, extent in zip(starts, sizes, view.shape, strict=True)
    ]
    return View(view.ref, view.dtype, tuple(dims))


@rule("dynamic_slice")
def _dynamic_slice(t, eqn, a, *starts):
    sizes = eqn.params["slice_sizes"]
    starts = starts[: a.rank]
    if a.rank == 0:
        return a
    if all(s.is_constant for s in starts):
        fixed = [
            _clamped(t, s, n - size).constant
            for s, n, size in zip(starts, a.shape, sizes, strict=True)
        ]
        return sliced(t, a, fixed, sizes, [1] * a.rank)
    return load(t, _window(t, spilled(t, a), starts, sizes))


@rule("dynamic_update_slice")
def _dynamic_update_slice(t, eqn, a, update, *starts):
    if a.rank == 0:
        return update
    view = spilled(t, a)
    store(t, _window(t, view, starts, update.shape), update)
    return load(t, view)


@rule("pad")
def _pad(t, eqn, a, filler):
    config = eqn.params["padding_config"]
    if not any(interior for _, _, interior in config):
        return padded(t, a, filler, [(low, high) for low, high, _ in config])
    dtype, shape = aval_of(eqn)
    view = t.scratch(dtype, shape)
    store(t, view, broadcast(t, filler, shape))
    dims = [
        Dim("slice", i64(t, low), extent, interior + 1)
        for (low, _, interior), extent in zip(config, a.shape, strict=True)
    ]
    store(t, View(view.ref, dtype, tuple(dims)), a)
    return load(t, view)


@rule("rev")
def _rev(t, eqn, a):
    view = spilled(t, a)
    dims = list(view.dims)
    reversed_axes = [axis for axis in eqn.params["dimensions"] if a.shape[axis] > 1]
    if not reversed_axes:
        return a
    if len(reversed_axes) > 1:
        raise UnsupportedError("a reversal of more than one axis at once")
    axis = reversed_axes[0]
    extent = a.shape[axis]
    up = t.program.emit("iota", [], "i32", (extent,), {"axis": 0})
    down = t.program.emit("sub", [t.number(extent - 1, "i32", (extent,)), up], "i32", (extent,))
    dims[axis] = Dim("tile", down)
    return load(t, View(view.ref, view.dtype, tuple(dims), (extent,)))


def _windows(rank, dropped, window_dims):
    """{operand axis: result axis} of the axes along which a window extends."""
    return dict(
        zip([axis for axis in range(rank) if axis not in dropped], window_dims, strict=True)
    )


def _places(t, a, indices, shape, indexed, batching, windows, sizes, mode):
    """Where each element of `shape` (a gather's result, a scatter's updates) lies in the tile: a
    View of memory that holds the tile, and a mask of what lies inside, or None.

    `indexed`: the axes that the last dimension of `indices` gives; `batching`: {axis: the dimension
    of `indices` that it is paired with}; `windows`: {axis: axis of `shape`}, `sizes` long."""
    view = spilled(t, a)
    joint = [axis for axis in range(len(shape)) if axis not in windows.values()]
    dims, mask = [], None
    for axis, extent in enumerate(a.shape):
        place = None
        if axis in indexed:
            start = _column(t, indices, indexed.index(axis))
            ends = t.like(start, 0), t.like(start, extent - sizes[axis])
            if "fill" in mode:
                for op, end in zip(("ge", "le"), ends, strict=True):
                    fits = elementwise(t, op, [start, end], "bool", start.shape)
                    mask = fits if mask is None else _and(t, mask, fits)
            else:
                start = elementwise(t, "clamp", [start, *ends], start.dtype, start.shape)
            place = _spread(t, start, joint, shape)
        elif axis in batching:
            place = _counting(t, joint[batching[axis]], shape)
        if axis in windows and sizes[axis] > 1:
            step = _counting(t, windows[axis], shape)
            place = step if place is None else total(t, place, cast(t, step, place.dtype))
        place = t.number(0, "i32", shape) if place is None else place
        dims.append(Dim("tile", place) if shape else Dim("scalar", i64(t, place)))
    if mask is not None:
        mask = _spread(t, mask, joint, shape)
    return View(view.ref, view.dtype, tuple(dims), tuple(shape)), mask


def _and(t, a, b):
    return elementwise(t, "bitwise_and", [a, b], "bool", a.shape)


def _column(t, indices, place):
    """One component of the indices, as a signed tile of the joint dimensions."""
    starts, extents = [0] * indices.rank, list(indices.shape)
    starts[-1], extents[-1] = place, 1
    column = reshape(t, sliced(t, indices, starts, extents, [1] * indices.rank), indices.shape[:-1])
    return column if column.dtype in ("i32", "i64") else cast(t, column, "i64")


def _spread(t, tile, axes, shape):
    """A tile whose dimensions are `axes` of `shape`, broadcast to all of it."""
    wanted = [1] * len(shape)
    for axis, extent in zip(axes, tile.shape, strict=True):
        wanted[axis] = extent
    return broadcast(t, reshape(t, tile, wanted), shape)


def _counting(t, axis, shape):
    """0, 1, 2, ... along an axis."""
    if shape[axis] <= 1:
        return t.number(0, "i32", shape)
    return t.program.emit("iota", [], "i32", shape, {"axis": axis})


def _at_arrays(t, a, indices, indexed, mode):
    """Like _places if the other axes are taken whole: they stay slices. Also returns the axes of
    the access that hold the joint dimensions of the indices."""
    batch = indices.shape[:-1]
    view = spilled(t, a)
    dims = list(view.dims)
    for place, axis in enumerate(indexed):
        tile = _column(t, indices, place)
        if "fill" not in mode:
            ends = t.like(tile, 0), t.like(tile, a.shape[axis] - 1)
            tile = elementwise(t, "clamp", [tile, *ends], tile.dtype, tile.shape)
        dims[axis] = Dim("tile", tile) if batch else Dim("scalar", i64(t, tile))
    first = min(indexed, default=0)
    joint = list(range(first, first + len(batch)))
    return View(view.ref, view.dtype, tuple(dims), batch), joint


def _order_of(rank, joint, window_dims):
    """For each axis of the primitive's array the axis of the access: joint dimensions take the axes
    that the window does not."""
    others = iter([axis for axis in range(rank) if axis not in joint])
    joints = iter(joint)
    return [next(others) if axis in window_dims else next(joints) for axis in range(rank)]


@rule("gather")
def _gather(t, eqn, a, indices):
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    mode = gather_mode(eqn.params["mode"])
    shape = aval_of(eqn)[1]
    check_tile(shape)
    other = None
    if "fill" in mode:
        fill = eqn.params.get("fill_value")
        other = t.number(_fill_of(a.dtype) if fill is None else fill, a.dtype)
    batching = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims,
                        strict=True))  # fmt: skip
    indexed, collapsed = list(numbers.start_index_map), numbers.collapsed_slice_dims
    windows = _windows(a.rank, {*collapsed, *batching}, numbers.offset_dims)
    whole = all(sizes[axis] == a.shape[axis] for axis in windows)
    if whole and not batching and sorted(indexed) == sorted(collapsed):
        view, joint = _at_arrays(t, a, indices, indexed, mode)
        result = load(t, view, None, other)
        return transpose(t, result, _order_of(result.rank, joint, numbers.offset_dims))
    view, mask = _places(t, a, indices, shape, indexed, batching, windows, sizes, mode)
    return load(t, view, mask, other)


def gather_mode(mode):
    """ "fill" if elements out of bounds are filled or dropped, else how they are clamped."""
    return "fill" if "fill" in str(mode).lower() or str(mode) == "1" else "clip"


def _fill_of(dtype):
    if is_float(dtype):
        return float("nan")
    if dtype == "bool":
        return True
    return -(1 << (bits_of(dtype) - 1)) if dtype[0] == "i" else (1 << bits_of(dtype)) - 1


_SCATTERS = {
    "scatter": None,
    "scatter-add": "atomic_add",
    "scatter_add": "atomic_add",
    "scatter-max": "atomic_max",
    "scatter_max": "atomic_max",
    "scatter-min": "atomic_min",
    "scatter_min": "atomic_min",
}


@rule(*_SCATTERS)
def _scatter(t, eqn, a, indices, updates):
    numbers = eqn.params["dimension_numbers"]
    mode = gather_mode(eqn.params["mode"])
    batching = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims,
                        strict=True))  # fmt: skip
    inserted, indexed = numbers.inserted_window_dims, list(numbers.scatter_dims_to_operand_dims)
    windows = _windows(a.rank, {*inserted, *batching}, numbers.update_window_dims)
    sizes = [updates.shape[windows[x]] if x in windows else 1 for x in range(a.rank)]
    mask = None
    whole = all(sizes[axis] == a.shape[axis] for axis in windows)
    if whole and not batching and sorted(indexed) == sorted(inserted):
        view, joint = _at_arrays(t, a, indices, indexed, mode)
        order = _order_of(updates.rank, joint, numbers.update_window_dims)
        updates = transpose(t, updates, [order.index(axis) for axis in range(len(order))])
    else:
        view, mask = _places(t, a, indices, updates.shape, indexed, batching, windows, sizes, mode)
    op = _SCATTERS[eqn.primitive.name]
    if op is None:
        store(t, view, updates, mask)
    else:
        atomic(t, op, view, [updates], mask)
    return load(t, View.whole(view.ref, view.dtype, a.shape))
