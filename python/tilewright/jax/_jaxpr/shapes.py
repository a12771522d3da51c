"""Rules of primitives that move elements, and of those that work across them."""

import math

from .elementwise import aval_of, broadcast, cast, elementwise
from .refs import Dim, View, atomic, broadcast_to, i64, load, store
from .text import Affine, UnsupportedError, bits_of, is_float
from .translate import rule

# ---- Shapes.


def reshape(t, value, shape):
    shape = tuple(shape)
    if value.shape == shape:
        return value
    if value.is_constant:
        return t.constant(value.constant, value.dtype, shape)
    if value.rank == 0:
        return broadcast(t, value, shape)
    return t.writer.emit("reshape", [value], value.dtype, shape, affine=_regrouped(value, shape))


def _regrouped(value, shape):
    """The affine form after axes of extent 1 came or went."""
    if value.affine is None:
        return None
    kept = [n for n in value.shape if n != 1]
    if kept != [n for n in shape if n != 1]:
        return None
    steps = iter([s for s, n in zip(value.affine.steps, value.shape, strict=True) if n != 1])
    return Affine(
        value.affine.offset, value.affine.terms, tuple(0 if n == 1 else next(steps) for n in shape)
    )


def transpose(t, value, permutation):
    permutation = list(permutation)
    if permutation == sorted(permutation) or value.rank == 0:
        return value
    shape = tuple(value.shape[axis] for axis in permutation)
    if value.is_constant:
        return t.constant(value.constant, value.dtype, shape)
    affine = value.affine
    if affine is not None:
        steps = tuple(affine.steps[axis] for axis in permutation)
        affine = Affine(affine.offset, affine.terms, steps)
    facts = {"affine": affine, "transposed": (value, permutation)}
    text = f"permutation {permutation}"
    return t.writer.emit("transpose", [value], value.dtype, shape, text, **facts)


def check_tile(value_shape):
    if len(value_shape) > 4:
        raise UnsupportedError(f"a tile of {len(value_shape)} dimensions, of which there may be 4")


@rule("broadcast_in_dim")
def _broadcast_in_dim(t, eqn, a, *dynamic):
    if dynamic:
        raise UnsupportedError("a broadcast to a traced shape")
    _, shape = aval_of(eqn)
    check_tile(shape)
    wanted = [1] * len(shape)
    for axis, place in enumerate(eqn.params["broadcast_dimensions"]):
        wanted[place] = a.shape[axis]
    return broadcast(t, reshape(t, a, wanted) if a.rank else a, shape)


@rule("broadcast_to")
def _broadcast_to(t, eqn, a):
    return broadcast_to(t, a, aval_of(eqn)[1])


@rule("reshape")
def _reshape(t, eqn, a, *dynamic):
    if dynamic or eqn.params.get("dimensions") is not None:
        raise UnsupportedError("a reshape that also transposes or has a traced shape")
    check_tile(aval_of(eqn)[1])
    return reshape(t, a, aval_of(eqn)[1])


@rule("squeeze", "expand_dims")
def _squeeze(t, eqn, a):
    return reshape(t, a, aval_of(eqn)[1])


@rule("transpose")
def _transpose(t, eqn, a):
    return transpose(t, a, eqn.params["permutation"])


@rule("iota")
def _iota(t, eqn):
    dtype, shape = aval_of(eqn)
    check_tile(shape)
    axis = eqn.params["dimension"]
    if not shape or math.prod(shape) == 0 or shape[axis] == 1:
        return t.constant(0, dtype, shape)
    # One axis alone, then broadcast: what the machines recognise as positions.
    steps = tuple(int(a == axis) for a in range(len(shape)))
    affine = Affine(0, (), steps) if dtype in ("i32", "i64") else None
    return t.writer.emit("iota", [], dtype, shape, f"axis {axis}", affine=affine)


def sliced(t, value, starts, sizes, strides):
    starts, sizes, strides = ([int(n) for n in part] for part in (starts, sizes, strides))
    if sizes == list(value.shape) and all(s == 1 for s in strides):
        return value
    if value.is_constant:
        return t.constant(value.constant, value.dtype, tuple(sizes))
    text = f"starts {starts} sizes {sizes} strides {strides}"
    return t.writer.emit("slice", [value], value.dtype, tuple(sizes), text)


@rule("slice")
def _slice(t, eqn, a):
    starts = eqn.params["start_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    return sliced(t, a, starts, aval_of(eqn)[1], strides)


def concatenated(t, parts, axis):
    parts = [part for part in parts if part.shape[axis]] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return t.writer.emit("concatenate", parts, parts[0].dtype, tuple(shape), f"axis {axis}")


@rule("concatenate")
def _concatenate(t, eqn, *parts):
    return concatenated(t, parts, eqn.params["dimension"])


@rule("stack")
def _stack(t, eqn, *parts):
    axis = eqn.params["axis"]
    shape = list(parts[0].shape)
    shape.insert(axis, 1)
    check_tile(shape)
    return concatenated(t, [reshape(t, part, shape) for part in parts], axis)


@rule("tile")
def _tile(t, eqn, a):
    reps = eqn.params["reps"]
    for axis, count in enumerate(reps):
        if count == 0:
            extents = [0 if i == axis else n for i, n in enumerate(a.shape)]
            a = t.constant(0, a.dtype, tuple(extents))
        elif count > 1:
            a = concatenated(t, [a] * count, axis)
    return a


@rule("unstack")
def _unstack(t, eqn, a):
    axis = eqn.params["axis"]
    results = []
    for i in range(a.shape[axis]):
        starts, sizes = [0] * a.rank, list(a.shape)
        starts[axis], sizes[axis] = i, 1
        part = sliced(t, a, starts, sizes, [1] * a.rank)
        results.append(reshape(t, part, a.shape[:axis] + a.shape[axis + 1 :]))
    return results


@rule("split")
def _split(t, eqn, a):
    axis, results, start = eqn.params["axis"], [], 0
    for size in eqn.params["sizes"]:
        starts, sizes = [0] * a.rank, list(a.shape)
        starts[axis], sizes[axis] = start, size
        results.append(sliced(t, a, starts, sizes, [1] * a.rank))
        start += size
    return results


@rule("pad")
def _pad(t, eqn, a, filler):
    for axis, (low, high, interior) in enumerate(eqn.params["padding_config"]):
        if interior:
            raise UnsupportedError("padding between elements")
        starts, sizes = [0] * a.rank, list(a.shape)
        starts[axis] = max(0, -low)
        sizes[axis] = max(0, a.shape[axis] - max(0, -low) - max(0, -high))
        a = sliced(t, a, starts, sizes, [1] * a.rank)
        parts = []
        for amount in (low, high):
            extents = list(a.shape)
            extents[axis] = max(0, amount)
            parts.append(broadcast(t, filler, tuple(extents)) if amount > 0 else None)
        before, after = parts
        a = concatenated(t, [part for part in (before, a, after) if part is not None], axis)
    return a


# ---- Elements at traced places: a tile has none, so it goes through memory of the program.


def spilled(t, value):
    """A Ref that holds the tile."""
    view = t.scratch(value.dtype, value.shape)
    store(t, view, value)
    return view


def _clamped(t, start, room):
    start = i64(t, start)
    if start.is_constant:
        return t.constant(min(max(start.constant, 0), room), "i64")
    operands = [start, t.constant(0, "i64"), t.constant(room, "i64")]
    return t.writer.emit("clamp", operands, "i64", ())


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
    up = t.writer.emit("iota", [], "i32", (extent,), "axis 0")
    down = t.writer.emit("sub", [t.constant(extent - 1, "i32", (extent,)), up], "i32", (extent,))
    dims[axis] = Dim("tile", down)
    return load(t, View(view.ref, view.dtype, tuple(dims), (extent,)))


def _at_arrays(t, a, indices, indexed, whole, mode, what):
    """The elements of a tile that jnp's indexing by arrays names: a View of memory that holds the
    tile, and the axes where the joint dimensions of the indices stand. `indexed`: the axes that the
    last dimension of `indices` counts; `whole`: the others, of which all is taken."""
    if sorted([*indexed, *whole]) != list(range(a.rank)):
        raise UnsupportedError(f"a {what} of slices that start at array indices")
    batch = indices.shape[:-1]
    view = spilled(t, a)
    dims = list(view.dims)
    for place, axis in enumerate(indexed):
        starts, extents = [0] * indices.rank, list(indices.shape)
        starts[-1], extents[-1] = place, 1
        tile = reshape(t, sliced(t, indices, starts, extents, [1] * indices.rank), batch)
        if "fill" not in mode:
            ends = t.like(tile, 0), t.like(tile, a.shape[axis] - 1)
            tile = elementwise(t, "clamp", [tile, *ends], tile.dtype, tile.shape)
        dims[axis] = Dim("tile", tile) if batch else Dim("scalar", i64(t, tile))
    first = min(indexed, default=0)
    if batch and sorted(indexed) != list(range(first, first + len(indexed))):
        raise UnsupportedError(f"a {what} along axes that are apart")
    joint = list(range(first, first + len(batch)))
    return View(view.ref, view.dtype, tuple(dims), batch), joint


def _order_of(rank, joint, window_dims):
    """Per axis of the primitive's array the axis of the access: joint dimensions fill what the
    window leaves free."""
    others = iter([axis for axis in range(rank) if axis not in joint])
    joints = iter(joint)
    return [next(others) if axis in window_dims else next(joints) for axis in range(rank)]


@rule("gather")
def _gather(t, eqn, a, indices):
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    mode = gather_mode(eqn.params["mode"])
    if getattr(numbers, "operand_batching_dims", ()):
        raise UnsupportedError("a gather with batch dimensions, as take_along_axis makes")
    collapsed = numbers.collapsed_slice_dims
    whole = [axis for axis, size in enumerate(sizes) if size == a.shape[axis]
             and axis not in collapsed]  # fmt: skip
    indexed = [axis for axis in numbers.start_index_map if axis in collapsed]
    if len(indexed) != len(numbers.start_index_map):
        raise UnsupportedError("a gather of slices that start at array indices")
    view, joint = _at_arrays(t, a, indices, indexed, whole, mode, "gather")
    other = None
    if "fill" in mode:
        fill = eqn.params.get("fill_value")
        if fill is None:
            fill = _fill_of(a.dtype)
        other = t.constant(fill, a.dtype)
    result = load(t, view, None, other)
    return transpose(t, result, _order_of(result.rank, joint, numbers.offset_dims))


def gather_mode(mode):
    """ "fill" where elements outside are filled or dropped, else what they are clamped to."""
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
    if getattr(numbers, "operand_batching_dims", ()):
        raise UnsupportedError("a scatter with batch dimensions")
    inserted = numbers.inserted_window_dims
    indexed = list(numbers.scatter_dims_to_operand_dims)
    whole = [axis for axis in range(a.rank) if axis not in inserted]
    extents = [updates.shape[axis] for axis in numbers.update_window_dims]
    if sorted(indexed) != sorted(inserted) or extents != [a.shape[axis] for axis in whole]:
        raise UnsupportedError("a scatter of slices that start at array indices")
    mode = gather_mode(eqn.params["mode"])
    view, joint = _at_arrays(t, a, indices, indexed, whole, mode, "scatter")
    order = _order_of(updates.rank, joint, numbers.update_window_dims)
    updates = transpose(t, updates, [order.index(axis) for axis in range(len(order))])
    op = _SCATTERS[eqn.primitive.name]
    if op is None:
        store(t, view, updates)
    else:
        atomic(t, op, view, [updates])
    return load(t, View.whole(view.ref, view.dtype, a.shape))


# ---- Reductions and scans.

_REDUCTIONS = {
    "reduce_sum": "sum",
    "reduce_prod": "prod",
    "reduce_max": "max",
    "reduce_min": "min",
    "argmax": "argmax",
    "argmin": "argmin",
}


def reduced(t, value, kind, axes):
    for axis in sorted(axes, reverse=True):
        shape = value.shape[:axis] + value.shape[axis + 1 :]
        dtype = "i32" if kind.startswith("arg") else value.dtype
        value = t.writer.emit("reduce", [value], dtype, shape, f"{kind} axis {axis}")
    return value


@rule(*_REDUCTIONS)
def _reduce(t, eqn, a):
    kind = _REDUCTIONS[eqn.primitive.name]
    axes = eqn.params["axes"]
    if kind.startswith("arg") and len(axes) != 1:
        raise UnsupportedError(f"{kind} over {len(axes)} axes at once")
    return cast(t, reduced(t, a, kind, axes), aval_of(eqn)[0])


@rule("reduce_or", "reduce_and")
def _reduce_bool(t, eqn, a):
    if a.dtype != "bool":
        raise UnsupportedError(f"a bitwise reduction of {a.dtype}")
    return reduced(t, a, "any" if eqn.primitive.name == "reduce_or" else "all", eqn.params["axes"])


_SCANS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}


@rule(*_SCANS)
def _scan(t, eqn, a):
    text = f"{_SCANS[eqn.primitive.name]} axis {eqn.params['axis']}"
    text += " reverse" if eqn.params["reverse"] else ""
    return t.writer.emit("scan", [a], a.dtype, a.shape, text)
