"""The operations of PyTorch that a mod may hold, by the names of their aten operators.

A rule gets the recorder, what the operation gives for meta tensors, and the operation's arguments. It
returns a value of `_values.py`. What has no rule here is taken apart by PyTorch's decompositions.
"""

import functools
import math

import numpy as np
import torch

from .._numbers import Number, RefusedError
from .._values import Scattered, is_constant, simplified
from ._values import Part

RULES = {}


def rule(*names):
    def register(function):
        for name in names:
            RULES[name if ":" in name else f"aten::{name}"] = function
        return function

    return register


def _same(names, make):
    """One rule for an operator of aten and its twin of prims."""
    for name in names.split():
        aten, _, own = name.partition("=")
        rule_ = make(own or aten)
        for space in ("aten", "prims"):
            RULES.setdefault(f"{space}::{aten}", rule_)


# ---- Elementwise.


def _floating(r, out, name, *inputs):
    return r.apply(name, inputs, out.dtype, out.dtype)


_same(
    "exp exp2 expm1 log log2 log1p tanh erf sin cos sqrt rsqrt sigmoid=logistic mul neg maximum=max "
    "minimum=min fmax=max fmin=min bitwise_not=not sign sgn=sign pow square",
    lambda own: lambda r, out, *inputs, **_: _floating(r, out, own, *inputs),
)
_same(
    "bitwise_and=and bitwise_or=or bitwise_xor=xor __and__=and __or__=or __xor__=xor "
    "bitwise_left_shift=shift_left bitwise_right_shift=shift_right_arithmetic "
    "__lshift__=shift_left __rshift__=shift_right_arithmetic shift_left "
    "shift_right_arithmetic",
    lambda own: lambda r, out, *inputs, **_: _floating(r, out, own, *inputs),
)
_same(
    "eq ne lt le gt ge",
    lambda own: lambda r, out, a, b: r.apply(own, (a, b), torch.bool, r.common(a, b)),
)
RULES["approx::tanh"] = lambda r, out, x: _floating(r, out, "approx_tanh", x)


def _rounding(own):
    def apply(r, out, x):
        return _floating(r, out, own, x) if out.dtype.is_floating_point else r.value(x, out.dtype)

    return apply


_same("floor ceil", _rounding)


@rule("round")
def _round(r, out, x, *, decimals=0):
    if decimals:
        raise RefusedError("expected round to whole numbers but got decimals")
    return _rounding("round")(r, out, x)


def _scaled(r, out, x, alpha):
    return x if alpha == 1 else r.apply("mul", (x, alpha), out.dtype, out.dtype)


@rule("add", "prims::add")
def _add(r, out, a, b, *, alpha=1):
    if out.dtype == torch.bool:
        return _floating(r, out, "or", a, b)
    gradients = [r.value(x) for x in (a, b)]
    if all(isinstance(x, Scattered) for x in gradients):
        first, second = gradients
        return Scattered(out.shape, out.dtype, first.entries + second.entries)
    return _floating(r, out, "add", a, _scaled(r, out, b, alpha))


@rule("sub", "prims::sub")
def _sub(r, out, a, b, *, alpha=1):
    return _floating(r, out, "sub", a, _scaled(r, out, b, alpha))


@rule("rsub")
def _rsub(r, out, a, b, alpha=1):
    return _floating(r, out, "sub", b, _scaled(r, out, a, alpha))


@rule("mul", "prims::mul")
def _mul(r, out, a, b):
    return _floating(r, out, "and" if out.dtype == torch.bool else "mul", a, b)


@rule("div", "true_divide", "prims::div")
def _div(r, out, a, b, *, rounding_mode=None):
    if rounding_mode is None:
        return _floating(r, out, "div", a, b)
    if rounding_mode == "floor":
        return _floating(r, out, "floor_divide", a, b)
    quotient = _floating(r, out, "div", a, b)
    return _trunc(r, out, quotient)


@rule("floor_divide")
def _floor_divide(r, out, a, b):
    return _floating(r, out, "floor_divide", a, b)


@rule("remainder", "prims::remainder")
def _remainder(r, out, a, b):
    return _floating(r, out, "remainder", a, b)


@rule("fmod", "prims::fmod")
def _fmod(r, out, a, b):
    return _floating(r, out, "rem", a, b)


@rule("trunc", "fix", "prims::trunc")
def _trunc(r, out, x):
    if not out.dtype.is_floating_point:
        return r.value(x, out.dtype)
    down, up = _floating(r, out, "floor", x), _floating(r, out, "ceil", x)
    negative = r.apply("lt", (x, 0), torch.bool, out.dtype)
    return _where(r, out, negative, up, down)


@rule("frac")
def _frac(r, out, x):
    return _floating(r, out, "sub", x, _trunc(r, out, x))


@rule("abs", "prims::abs")
def _abs(r, out, x):
    return r.value(x, out.dtype) if out.dtype == torch.bool else _floating(r, out, "abs", x)


@rule("reciprocal", "prims::reciprocal")
def _reciprocal(r, out, x):
    return _floating(r, out, "div", 1, x)


@rule("log10")
def _log10(r, out, x):
    return _floating(r, out, "mul", _floating(r, out, "log", x), 1 / math.log(10))


@rule("tan", "prims::tan")
def _tan(r, out, x):
    return _floating(r, out, "div", _floating(r, out, "sin", x), _floating(r, out, "cos", x))


@rule("cosh", "prims::cosh")
def _cosh(r, out, x):
    e = _floating(r, out, "exp", _floating(r, out, "abs", x))
    return _floating(r, out, "mul", 0.5, _floating(r, out, "add", e, _reciprocal(r, out, e)))


@rule("sinh", "prims::sinh")
def _sinh(r, out, x):
    e = _floating(r, out, "expm1", x)
    rest = _floating(r, out, "div", e, _floating(r, out, "add", e, 1))
    return _floating(r, out, "mul", 0.5, _floating(r, out, "add", e, rest))


@rule("erfc", "prims::erfc")
def _erfc(r, out, x):
    return _floating(r, out, "sub", 1, _floating(r, out, "erf", x))


@rule("relu")
def _relu(r, out, x):
    return _floating(r, out, "max", x, 0)


@rule("silu")
def _silu(r, out, x):
    return _floating(r, out, "mul", x, _floating(r, out, "logistic", x))


@rule("gelu")
def _gelu(r, out, x, *, approximate="none"):
    if approximate == "tanh":
        cube = _floating(r, out, "mul", x, _floating(r, out, "square", x))
        inner = _floating(r, out, "add", x, _floating(r, out, "mul", 0.044715, cube))
        part = _floating(r, out, "tanh", _floating(r, out, "mul", math.sqrt(2 / math.pi), inner))
    else:
        part = _floating(r, out, "erf", _floating(r, out, "mul", x, math.sqrt(0.5)))
    half = _floating(r, out, "mul", 0.5, x)
    return _floating(r, out, "mul", half, _floating(r, out, "add", 1, part))


@rule("softplus")
def _softplus(r, out, x, beta=1, threshold=20):
    scaled = _floating(r, out, "mul", x, beta)
    small = _floating(
        r, out, "log1p", _floating(r, out, "exp", _floating(r, out, "min", scaled, threshold))
    )
    large = r.apply("gt", (scaled, threshold), torch.bool, out.dtype)
    return _where(r, out, large, x, _floating(r, out, "div", small, beta))


@rule("isnan")
def _isnan(r, out, x):
    return r.apply("isnan", (x,), torch.bool, torch.float32)


@rule("isinf")
def _isinf(r, out, x):
    wide = r.common(x, 1.0)
    return r.apply("eq", (r.apply("abs", (x,), wide, wide), math.inf), torch.bool, wide)


@rule("isneginf")
def _isneginf(r, out, x):
    return r.apply("eq", (x, -math.inf), torch.bool, r.common(x, 1.0))


@rule("isposinf")
def _isposinf(r, out, x):
    return r.apply("eq", (x, math.inf), torch.bool, r.common(x, 1.0))


@rule("isfinite")
def _isfinite(r, out, x):
    wide = r.common(x, 1.0)
    return r.apply("lt", (r.apply("abs", (x,), wide, wide), math.inf), torch.bool, wide)


@rule("logical_not")
def _logical_not(r, out, x):
    return r.apply("not", (x,), torch.bool, torch.bool)


_same(
    "logical_and=and logical_or=or logical_xor=xor",
    lambda own: lambda r, out, a, b: r.apply(own, (a, b), torch.bool, torch.bool),
)


@rule("where", "prims::where")
def _where(r, out, condition, a, b):
    return r.values.apply_all(
        "where",
        [r.value(condition, torch.bool), r.value(a, out.dtype), r.value(b, out.dtype)],
        out.dtype,
    )


@rule("masked_fill")
def _masked_fill(r, out, x, mask, value):
    return _where(r, out, mask, value, x)


@rule("clamp", "clip")
def _clamp(r, out, x, min=None, max=None):  # noqa: A002
    x = x if min is None else _floating(r, out, "max", x, min)
    return r.value(x, out.dtype) if max is None else _floating(r, out, "min", x, max)


@rule("clamp_min")
def _clamp_min(r, out, x, min):  # noqa: A002
    return _floating(r, out, "max", x, min)


@rule("clamp_max")
def _clamp_max(r, out, x, max):  # noqa: A002
    return _floating(r, out, "min", x, max)


# ---- Casts, constants, copies.


@rule("_to_copy", "prims::convert_element_type", "to")
def _to_copy(r, out, x, *_, **__):
    return r.value(x, out.dtype)


@rule("clone", "alias", "lift_fresh", "contiguous", "view_of", "prims::view_of", "positive",
      "_conj", "resolve_conj", "resolve_neg")  # fmt: skip
def _copy(r, out, x, *_, **__):
    return r.value(x)


@rule("detach")
def _detach(r, out, x):
    if x.dtype.is_floating_point:
        r.own_rules = True
    return r.value(x)


@rule("copy_", "copy")
def _copy_into(r, out, _, x, *__):
    return np.broadcast_to(r.values.array_of(r.value(x, out.dtype)), out.shape)[()]


def _filled(r, out, value):
    if math.prod(out.shape) > 1 and value == 0:
        return Scattered(out.shape, out.dtype)
    return np.full(out.shape, r.values.dtypes.constant(value, out.dtype))[()]


for _name in ("new_ones", "ones_like"):
    RULES[f"aten::{_name}"] = lambda r, out, *_, **__: _filled(r, out, 1)
for _name in ("new_zeros", "zeros_like", "new_empty", "empty_like", "zero", "new_empty_strided"):
    RULES[f"aten::{_name}"] = lambda r, out, *_, **__: _filled(r, out, 0)
RULES["aten::full_like"] = lambda r, out, x, value, **_: _filled(r, out, value)
RULES["aten::fill"] = lambda r, out, x, value, **_: _copy_into(r, out, x, value)
RULES["aten::new_full"] = lambda r, out, x, size, value, **_: _filled(r, out, value)


@rule("_local_scalar_dense", "is_nonzero", "item")
def _item(r, out, x):
    raise TypeError(NO_VALUE)


NO_VALUE = (
    "a traced value has no number while the mod is recorded: choose by torch.where(condition, a, b)"
)


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
            raise RefusedError("expected reductions over at least one element")
        total = functools.reduce(lambda a, b: r.values.apply_all(name, [a, b], dtype), parts)
        array = np.asarray(r.values.array_of(total))
    return simplified(array.reshape(out.shape))


@rule("sum", "prims::sum")
def _sum(r, out, x, dim=None, keepdim=False, **_):
    return _folded(r, out, x, dim, "add", out.dtype)


@rule("mean")
def _mean(r, out, x, dim=None, keepdim=False, **_):
    count = max(math.prod(x.shape) // max(math.prod(out.shape), 1), 1)
    return _floating(r, out, "div", _folded(r, out, x, dim, "add", out.dtype), count)


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
    raise RefusedError("expected amax or amin in a mod but got max or min; use torch.amax")


RULES["aten::max"] = lambda r, out, x, *rest: _two_or_all(r, out, x, "max", *rest)
RULES["aten::min"] = lambda r, out, x, *rest: _two_or_all(r, out, x, "min", *rest)


def _two_or_all(r, out, x, name, *rest):
    if rest and isinstance(rest[0], torch.Tensor):
        return _floating(r, out, name, x, rest[0])
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
    return simplified(r.values.array_of(total).reshape(out.shape))


# ---- Elements of arrays.


@rule("index", "_unsafe_index")
def _index(r, out, x, indices):
    value = r.value(x)
    dims = x.dim()
    indices = list(indices) + [None] * (dims - len(indices))
    for index in indices:
        if index is not None and index.dtype == torch.bool:
            raise RefusedError("expected integers as indices but got bools; use torch.where")
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
    """An array of the elements that small arrays of indices name."""
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
            raise RefusedError("expected a mod that writes no elements; use torch.where")
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


REFUSED = {
    "rand": "; attention has dropout= and seed= of its own",
    "bernoulli": "; attention has dropout= and seed= of its own",
    "dropout": "; attention has dropout= and seed= of its own",
    "normal": "; attention has dropout= and seed= of its own",
    "sort": "; sort outside of the mod",
    "topk": "; choose outside of the mod",
    "nonzero": "; its shape would depend on values: use torch.where(condition, a, b)",
    "unique": "; its shape would depend on values",
}
