"""Rules of sort and top_k: an element's place is the number of elements that come before it, counted
in a loop over them; then all of them are stored where they belong."""

from ...._dtypes import is_float
from .arithmetic import broadcast, cast, elementwise
from .control import for_loop
from .gathers import spilled
from .program import Value
from .refs import Dim, View, load, store
from .shapes import check_tile
from .translate import rule


def _both(t, op, a, b):
    return elementwise(t, op, [a, b], "bool", a.shape)


def _before(t, other, own, op):
    """(other comes before own, both are equal); a NaN comes after every number in ascending order,
    before in descending order."""
    before, same = _both(t, op, other, own), _both(t, "eq", other, own)
    if is_float(own.dtype):
        nan, other_nan = (elementwise(t, "isnan", [v], "bool", own.shape) for v in (own, other))
        late, early = (nan, other_nan) if op == "lt" else (other_nan, nan)
        number = elementwise(t, "bitwise_not", [early], "bool", own.shape)
        before = _both(t, "bitwise_or", before, _both(t, "bitwise_and", late, number))
        same = _both(t, "bitwise_or", same, _both(t, "bitwise_and", nan, other_nan))
    return before, same


def _ranks(t, keys, axis, op):
    """For each element the number of those before it along the axis; equal ones keep their order."""
    shape = keys[0].shape
    views = [spilled(t, key) for key in keys]
    position = _positions(t, axis, shape)

    def body(iv, carries):
        earlier = broadcast(t, cast(t, iv, "i32"), shape)
        ahead = _both(t, "lt", earlier, position)
        for key, view in zip(reversed(keys), reversed(views), strict=True):
            dims = list(view.dims)
            dims[axis] = Dim("slice", iv)
            other = broadcast(t, load(t, View(view.ref, view.dtype, tuple(dims))), shape)
            before, same = _before(t, other, key, op)
            ahead = _both(t, "bitwise_or", before, _both(t, "bitwise_and", same, ahead))
        return [elementwise(t, "add", [carries[0], cast(t, ahead, "i32")], "i32", shape)]

    low, high = t.number(0, "i64"), t.number(shape[axis], "i64")
    (ranks,) = for_loop(t, low, high, [t.number(0, "i32", shape)], body)
    return ranks


def _positions(t, axis, shape):
    return t.program.emit("iota", [], "i32", shape, {"axis": axis})


def _placed(t, value, ranks, axis, count):
    """The first `count` elements along the axis when each goes where its rank says."""
    shape = list(value.shape)
    shape[axis] = count
    view = t.scratch(value.dtype, tuple(shape))
    dims = [Dim("tile", ranks if a == axis else _positions(t, a, value.shape))
            for a in range(value.rank)]  # fmt: skip
    store(t, View(view.ref, view.dtype, tuple(dims), value.shape), value)
    return load(t, view)


@rule("sort")
def _sort(t, eqn, *operands):
    axis = eqn.params["dimension"]
    operands = [Value(v.dtype, v.shape, id=t.program.use(v)) for v in operands]
    if operands[0].shape[axis] <= 1:
        return operands
    ranks = _ranks(t, operands[: eqn.params["num_keys"]], axis, "lt")
    return [_placed(t, value, ranks, axis, value.shape[axis]) for value in operands]


@rule("top_k")
def _top_k(t, eqn, a):
    axis, count = eqn.params.get("axis", a.rank - 1) % a.rank, eqn.params["k"]
    check_tile(a.shape)
    ranks = _ranks(t, [a], axis, "gt")
    positions = _positions(t, axis, a.shape)
    return [_placed(t, value, ranks, axis, count) for value in (a, positions)]
