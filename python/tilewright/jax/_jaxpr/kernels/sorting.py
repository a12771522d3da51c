"""Rules of sort and top_k: sorting is an operation; what else moves along is gathered."""

from .gathers import spilled
from .program import Value
from .refs import Dim, View, load
from .shapes import check_tile
from .translate import rule


def _order(t, key, axis, op="argsort", **attributes):
    """The sorted elements of a key, or their places."""
    attributes = {"axis": axis, "count": key.shape[axis], **attributes}
    shape = list(key.shape)
    shape[axis] = attributes["count"]
    dtype = key.dtype if op == "sort" else "i32"
    return t.program.emit(op, [key], dtype, tuple(shape), attributes)


def _taken(t, value, places, axis):
    """The elements at the places along an axis."""
    view = spilled(t, value)
    positions = [
        places if a == axis else t.program.emit("iota", [], "i32", places.shape, {"axis": a})
        for a in range(value.rank)
    ]
    dims = tuple(Dim("tile", position) for position in positions)
    return load(t, View(view.ref, view.dtype, dims, places.shape))


@rule("sort")
def _sort(t, eqn, *operands):
    axis = eqn.params["dimension"]
    operands = [Value(v.dtype, v.shape, id=t.program.use(v)) for v in operands]
    if operands[0].shape[axis] <= 1:
        return operands
    check_tile(operands[0].shape)
    # By the last key first: sorting by the one before it keeps that order among equals.
    keys = operands[: eqn.params["num_keys"]]
    places = None
    for key in reversed(keys):
        if places is None:
            places = _order(t, key, axis)
        else:
            then = _order(t, _taken(t, key, places, axis), axis)
            places = _taken(t, places, then, axis)
    only = _order(t, keys[0], axis, "sort") if len(keys) == 1 else None
    moved = [_taken(t, v, places, axis) for v in operands[1:]] if only else None
    return [only, *moved] if only else [_taken(t, v, places, axis) for v in operands]


@rule("top_k")
def _top_k(t, eqn, a):
    axis, count = eqn.params.get("axis", a.rank - 1) % a.rank, eqn.params["k"]
    check_tile(a.shape)
    key = Value(a.dtype, a.shape, id=t.program.use(a))
    how = {"count": count, "descending": True}
    return [_order(t, key, axis, op, **how) for op in ("sort", "argsort")]
