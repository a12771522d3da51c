"""Operations on more than one element: shapes, reductions, indices, gradients; see `_rules.py`."""

import functools
import math

import numpy as np
import torch

from .._errors import UnsupportedError
from .._numbers import Number
from .._values import Scattered, is_constant, simplified
from ._rules import RULES, floating, rule
from ._values import Part

# ---- Shapes of small arrays.


def _of_shape(function):
    def apply(r, out, x, *arguments, **options):
        array = np.asarray(function(r.array(x), *arguments, **options))
        return simplified(array.reshape(out.shape))

    return apply


def _to_out_shape(r, out, x, *_, **__):
    value = r.value(x)
    if isinstance(value, Scattered) and tuple(value.shape) == tuple(out.shape):
        return value
    return simplified(r.array(x).reshape(out.shape))


for _name in (
    "view",
    "_unsafe_view",
    "reshape",
    "squeeze",
    "unsqueeze",
    "flatten",
    "_reshape_alias",
):
    RULES[f"aten::{_name}"] = _to_out_shape


@rule("expand", "broadcast_to")
def _expand(r, out, x, *_, **__):
    return simplified(np.broadcast_to(r.array(x), out.shape))


RULES["prims::broadcast_in_dim"] = lambda r, out, x, shape, dims: simplified(
    np.broadcast_to(
        r.array(x).reshape([x.shape[dims.index(i)] if i in dims else 1 for i in range(len(shape))]),
        shape,
    )
)
RULES["aten::permute"] = _of_shape(lambda x, dims: x.transpose(dims))
RULES["aten::transpose"] = _of_shape(lambda x, a, b: x.swapaxes(a, b) if x.ndim else x)
RULES["aten::t"] = _of_shape(lambda x: x.T)
RULES["aten::select"] = _of_shape(lambda x, dim, i: np.take(x, i, dim))
RULES["aten::flip"] = _of_shape(lambda x, dims: np.flip(x, tuple(dims)))


@rule("slice")
def _slice(r, out, x, dim=0, start=None, end=None, step=1):
    index = [slice(None)] * x.dim()
    index[dim] = slice(start, end, step)
    return r.array(x)[tuple(index)]


@rule("unbind")
def _unbind(r, out, x, dim=0):
    return [simplified(np.asarray(part)) for part in np.moveaxis(r.array(x), dim, 0)]


@rule("split", "split_with_sizes", "chunk")
def _split(r, out, x, sizes, dim=0):
    ends = np.cumsum([part.shape[dim] for part in out])[:-1]
    return list(np.split(r.array(x), ends, dim))


@rule("cat")
def _cat(r, out, parts, dim=0):
    return np.concatenate([r.array(x, out.dtype) for x in parts], dim)


@rule("stack")
def _stack(r, out, parts, dim=0):
    return np.stack([r.array(x, out.dtype) for x in parts], dim)


# ---- Reductions of small arrays, unrolled.


def _folded(r, out, x, dim, name, dtype):
    array = r.array(x, dtype)
    axes = range(array.ndim) if dim is None or dim == [] else dim
    axes = [axes] if isinstance(axes, int) else axes
    for axis in sorted((a % max(array.ndim, 1) for a in axes), reverse=True):
        if array.ndim == 0:
            break
        parts = [simplified(np.asarray(part)) for part in np.moveaxis(array, axis, 0)]
        if not parts:
            raise UnsupportedError("expected reductions over at least one element")
        total = functools.reduce(lambda a, b: r.values.apply_all(name, [a, b], dtype), parts)
        array = np.asarray(r.values.array_of(total))
    return simplified(array.reshape(out.shape))


@rule("sum", "prims::sum")
def _sum(r, out, x, dim=None, keepdim=False, **_):
    return _folded(r, out, x, dim, "add", out.dtype)


@rule("mean")
def _mean(r, out, x, dim=None, keepdim=False, **_):
    count = max(math.prod(x.shape) // max(math.prod(out.shape), 1), 1)
    return floating(r, out, "div", _folded(r, out, x, dim, "add", out.dtype), count)


@rule("prod")
def _prod(r, out, x, dim=None, keepdim=False, **_):
    return _folded(r, out, x, dim, "mul", out.dtype)


@rule("amax", "prims::amax")
def _amax(r, out, x, dim=None, keepdim=False, **_):
    return _folded(r, out, x, dim, "max", out.dtype)


@rule("amin", "prims::amin")
def _amin(r, out, x, dim=None, keepdim=False, **_):
    return _folded(r, out, x, dim, "min", out.dtype)


@rule("max", "min")
def _extreme(r, out, x, dim=None, keepdim=False):
    raise UnsupportedError("expected amax or amin in a mod but got max or min; use torch.amax")


RULES["aten::max"] = lambda r, out, x, *rest: _two_or_all(r, out, x, "max", *rest)
RULES["aten::min"] = lambda r, out, x, *rest: _two_or_all(r, out, x, "min", *rest)


def _two_or_all(r, out, x, name, *rest):
    if rest and isinstance(rest[0], torch.Tensor):
        return floating(r, out, name, x, rest[0])
    if rest:
        return _extreme(r, out, x)
    return _folded(r, out, x, None, name, out.dtype)


@rule("any")
def _any(r, out, x, dim=None, keepdim=False):
    return _folded(r, out, x, dim, "or", torch.bool)


@rule("all")
def _all(r, out, x, dim=None, keepdim=False):
    return _folded(r, out, x, dim, "and", torch.bool)


@rule("cumsum")
def _cumsum(r, out, x, dim, **_):
    array = r.array(x, out.dtype)
    if array.ndim == 0:
        return simplified(array)
    parts, total = [], None
    for part in np.moveaxis(array, dim, 0):
        part = simplified(np.asarray(part))
        total = part if total is None else r.values.apply_all("add", [total, part], out.dtype)
        parts.append(r.values.objects(total))
    return np.moveaxis(np.stack(parts), 0, dim)


@rule("dot", "vdot", "mv", "mm")
def _dot(r, out, x, y):
    x, y = r.array(x, out.dtype), r.array(y, out.dtype)
    terms = [
        r.values.apply_all(
            "mul",
            [x[..., i].reshape(x.shape[:-1] + (1,) * (y.ndim - 1)), np.asarray(y[i])],
            out.dtype,
        )
        for i in range(y.shape[0])
    ]
    total = functools.reduce(lambda a, b: r.values.apply_all("add", [a, b], out.dtype), terms)
    total = r.values.array_of(total)  # one element may stand for equal ones
    return simplified(
        np.broadcast_to(total, out.shape) if total.size == 1 else total.reshape(out.shape)
    )


@rule("bmm")
def _bmm(r, out, x, y):
    x, y = r.array(x, out.dtype), r.array(y, out.dtype)
    one = out[0] if len(x) else out
    return np.stack([r.values.objects(_dot(r, one, a, b)) for a, b in zip(x, y, strict=True)])


@rule("addmm", "addmv", "baddbmm")
def _added_to_product(r, out, x, a, b, *, beta=1, alpha=1):
    """Not decomposed: autograd needs the operands as they are."""
    product = (_bmm if out.ndim == 3 else _dot)(r, out, a, b)
    terms = [
        v if n == 1 else floating(r, out, "mul", v, n) for v, n in ((x, beta), (product, alpha))
    ]
    return floating(r, out, "add", *terms)


# ---- Elements of arrays.


@rule("index", "_unsafe_index")
def _index(r, out, x, indices):
    value = r.value(x)
    dims = x.dim()
    indices = list(indices) + [None] * (dims - len(indices))
    for index in indices:
        if index is not None and index.dtype == torch.bool:
            raise UnsupportedError("expected integers as indices but got bools; use torch.where")
    places = [None if i is None else r.value(i, torch.int64) for i in indices]
    shapes = [np.shape(p) if not isinstance(p, Number | Part) else p.shape if isinstance(p, Part) else ()
              for p in places if p is not None]  # fmt: skip
    shape = np.broadcast_shapes(*shapes)
    if isinstance(value, Part) and shape == ():
        places = [
            p if p is None else r.static_index(r.values.element(p), x.shape[d], d)
            for d, p in enumerate(places)
        ]
        return value.at(places)
    return _gathered(r, out, value, x, places, shape)


def _gathered(r, out, value, x, places, shape):
    """An array of the elements at small arrays of indices."""
    r.fixed_shapes = True
    arrays = [None if p is None else np.broadcast_to(r.values.array_of(p), shape) for p in places]
    taken = [d for d, a in enumerate(arrays) if a is not None]
    kept = [d for d, a in enumerate(arrays) if a is None]
    adjacent = taken == list(range(taken[0], taken[-1] + 1))
    first = sum(d < taken[0] for d in kept) if adjacent else 0
    result = np.empty(out.shape, object)
    rest = [x.shape[d] for d in kept]
    for at in np.ndindex(*shape):
        for others in np.ndindex(*rest):
            index = [None] * len(arrays)
            for d in taken:
                index[d] = r.static_index(arrays[d][at], x.shape[d], d)
            for d, place in zip(kept, others, strict=True):
                index[d] = r.values.index(place)
            result[(*others[:first], *at, *others[first:])] = _element(r, value, index, x.dtype)
    return simplified(result)


def _element(r, value, index, dtype):
    if isinstance(value, Part):
        return value.at(index).value()
    array = r.values.objects(value)
    for place in index:  # one dimension after the other
        if not isinstance(place, Number):
            array = np.asarray(array[int(place)])
            continue
        extent = array.shape[0]
        place = r.inside(place, extent)
        chosen = array[extent - 1]
        for i in reversed(range(extent - 1)):
            here = r.values.apply_all("eq", [place, r.values.index(i)], torch.bool)
            chosen = r.values.apply_all("where", [here, array[i], chosen], dtype)
        array = r.values.objects(chosen)
    return simplified(array)


@rule("gather", "take_along_dim")
def _gather(r, out, x, dim, index, **_):
    r.fixed_shapes = True
    places = r.array(index, torch.int64)
    result = np.empty(out.shape, object)
    for at in np.ndindex(*out.shape):
        where = [r.values.index(i) for i in at]
        where[dim] = r.static_index(places[at], x.shape[dim], dim)
        result[at] = _element(r, r.value(x), where, x.dtype)
    return simplified(result)


@rule("index_select")
def _index_select(r, out, x, dim, index):
    indices = [None] * x.dim()
    indices[dim] = index
    return _index(r, out, x, indices)


@rule("embedding")
def _embedding(r, out, table, index, *_):
    return _index(r, out, table, [index])


# ---- Gradients of captured arrays.


@rule("index_put", "_index_put_impl", "_unsafe_index_put")
def _index_put(r, out, x, indices, values, accumulate=False, unsafe=False):
    gradient = r.value(x)
    if not isinstance(gradient, Scattered) or not accumulate:
        if is_constant(gradient) and not np.any(gradient) and accumulate:
            gradient = Scattered(out.shape, out.dtype)
        else:
            raise UnsupportedError("expected a mod that writes no elements; use torch.where")
    places = [None if i is None else r.array(i, torch.int64) for i in indices]
    places += [None] * (len(out.shape) - len(places))
    shape = np.broadcast_shapes(*(p.shape for p in places if p is not None))
    taken = [d for d, p in enumerate(places) if p is not None]
    kept = [d for d, p in enumerate(places) if p is None]
    adjacent = taken == list(range(taken[0], taken[-1] + 1))
    first = sum(d < taken[0] for d in kept) if adjacent else 0
    rest = [out.shape[d] for d in kept]
    whole = np.broadcast_to(r.array(values, out.dtype), (*rest[:first], *shape, *rest[first:]))
    entries = list(gradient.entries)
    for at in np.ndindex(*shape):
        for others in np.ndindex(*rest):
            index = [None] * len(places)
            for d in taken:
                place = np.broadcast_to(places[d], shape)[at]
                index[d] = r.inside(place, out.shape[d])
            for d, place in zip(kept, others, strict=True):
                index[d] = r.values.index(place)
            entries.append((index, whole[(*others[:first], *at, *others[first:])]))
    return Scattered(out.shape, out.dtype, entries)


@rule("select_backward")
def _select_backward(r, out, gradient, sizes, dim, index):
    return _placed(r, out, r.array(gradient), dim, [index % out.shape[dim]], True)


@rule("slice_backward")
def _slice_backward(r, out, gradient, sizes, dim, start, end, step):
    places = list(range(*slice(start, end, step).indices(out.shape[dim])))
    return _placed(r, out, r.array(gradient), dim, places, False)


def _placed(r, out, part, dim, places, drop):
    entries = []
    part = np.expand_dims(part, dim) if drop else part
    for at in np.ndindex(*part.shape):
        index = [r.values.index(i) for i in at]
        index[dim] = r.values.index(places[at[dim]])
        entries.append((index, part[at]))
    return Scattered(out.shape, out.dtype, entries)
