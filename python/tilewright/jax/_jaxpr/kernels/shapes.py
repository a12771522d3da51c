"""Rules of primitives that move elements, and of those that combine them."""

import math

import jax
from jax import lax

from ...._errors import UnsupportedError
from .arithmetic import broadcast, cast
from .program import MAX_RANK
from .refs import broadcast_to
from .translate import aval_of, rule

# ---- Shapes.


def reshape(t, value, shape):
    shape = tuple(shape)
    if value.shape == shape:
        return value
    if value.is_constant:
        return t.number(value.constant, value.dtype, shape)
    if value.rank == 0:
        return broadcast(t, value, shape)
    return t.program.emit("reshape", [value], value.dtype, shape)


def transpose(t, value, permutation):
    permutation = list(permutation)
    if permutation == sorted(permutation) or value.rank == 0:
        return value
    shape = tuple(value.shape[axis] for axis in permutation)
    if value.is_constant:
        return t.number(value.constant, value.dtype, shape)
    attributes = {"permutation": [int(axis) for axis in permutation]}
    moved = (value, permutation)
    return t.program.emit("transpose", [value], value.dtype, shape, attributes, transposed=moved)


def check_tile(value_shape):
    if len(value_shape) > MAX_RANK:
        raise UnsupportedError(
            f"a tile of {len(value_shape)} dimensions, of which there may be {MAX_RANK}"
        )


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
        return t.number(0, dtype, shape)
    # Along one axis, then broadcast: the back ends recognise this form as positions.
    return t.program.emit("iota", [], dtype, shape, {"axis": axis})


def sliced(t, value, starts, sizes, strides):
    starts, sizes, strides = ([int(n) for n in part] for part in (starts, sizes, strides))
    if sizes == list(value.shape) and all(s == 1 for s in strides):
        return value
    if value.is_constant:
        return t.number(value.constant, value.dtype, tuple(sizes))
    attributes = {"starts": starts, "sizes": sizes, "strides": strides}
    return t.program.emit("slice", [value], value.dtype, tuple(sizes), attributes)


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
    return t.program.emit("concatenate", parts, parts[0].dtype, tuple(shape), {"axis": axis})


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
            a = t.number(0, a.dtype, tuple(extents))
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


def padded(t, a, filler, edges):
    """The tile padded by (low, high) elements along each axis, or cropped where negative."""
    for axis, (low, high) in enumerate(edges):
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
        value = t.program.emit("reduce", [value], dtype, shape, {"kind": kind, "axis": axis})
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


@rule("reduce")
def _reduce_by(t, eqn, *operands):
    """A reduction by the kernel's own function: a tree of neighbours, in order."""
    count = len(operands) // 2
    closed, dimensions = eqn.params["jaxpr"], eqn.params["dimensions"]

    def combined(before, after):
        def function(*scalars):
            return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *scalars)

        for _ in range(before[0].ndim):
            function = jax.vmap(function)
        return function(*before, *after)

    def folded(*arrays):
        values, start = list(arrays[:count]), list(arrays[count:])
        for axis in sorted(dimensions, reverse=True):
            if values[0].shape[axis] == 0:
                rest = [n for a, n in enumerate(values[0].shape) if a not in dimensions]
                return [lax.broadcast(v, rest) for v in start]
            while (n := values[0].shape[axis]) > 1:
                even = [lax.slice_in_dim(v, 0, n // 2 * 2, 2, axis) for v in values]
                odd = [lax.slice_in_dim(v, 1, n // 2 * 2, 2, axis) for v in values]
                last = [lax.slice_in_dim(v, n // 2 * 2, n, 1, axis) for v in values]
                pairs = zip(combined(even, odd), last, strict=True)
                values = [lax.concatenate(pair, axis) if n % 2 else pair[0] for pair in pairs]
            values = [lax.squeeze(v, (axis,)) for v in values]
        return combined([lax.broadcast(v, values[0].shape) for v in start], values)

    return t.inline_all(folded, *operands)


_SCANS = {
    "cumsum": "sum",
    "cumprod": "prod",
    "cummax": "max",
    "cummin": "min",
    "cumlogsumexp": "logsumexp",
}


@rule(*_SCANS)
def _scan(t, eqn, a):
    attributes = {"kind": _SCANS[eqn.primitive.name]}
    attributes |= {name: eqn.params[name] for name in ("axis", "reverse")}
    return t.program.emit("scan", [a], a.dtype, a.shape, attributes)
