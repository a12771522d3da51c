"""The operations of PyTorch that a mod may hold, by the names of their aten operators.

A rule gets the recorder, the operation's result on meta tensors, and the operation's arguments. It
returns a value of `_values.py`. Operations without a rule go through PyTorch's decompositions.
"""

import math
from collections.abc import Callable

import numpy as np
import torch

from .._errors import UnsupportedError
from .._numbers import FUNCTIONS
from .._values import Scattered

RULES: dict[str, Callable] = {}


def rule(*names):
    def register(function):
        for name in names:
            RULES[name if ":" in name else f"aten::{name}"] = function
        return function

    return register


def _same(names, make):
    """Registers one rule for an aten operator and its counterpart in prims."""
    for name in names.split():
        aten, _, own = name.partition("=")
        rule_ = make(own or aten)
        for space in ("aten", "prims"):
            RULES.setdefault(f"{space}::{aten}", rule_)


# ---- Elementwise.


def floating(r, out, name, *inputs):
    return r.apply(name, inputs, out.dtype, out.dtype)


_same(
    "mul neg maximum=max minimum=min fmax=max fmin=min bitwise_not=not sign sgn=sign square",
    lambda own: lambda r, out, *inputs, **_: floating(r, out, own, *inputs),
)


def _of_table(own):
    depends_on_format = FUNCTIONS[own].depends_on_format

    def apply(r, out, *inputs, **_):
        if depends_on_format and out.dtype not in (torch.float32, torch.float64):
            # Mods carry narrow floats as f32.
            raise UnsupportedError(f"expected {own} of float32 or float64 but got {out.dtype}")
        return floating(r, out, own, *inputs)

    return apply


for _own, _function in FUNCTIONS.items():
    _same(" ".join(f"{name}={_own}" for name in _function.torch.split()), _of_table)
_same(
    "bitwise_and=and bitwise_or=or bitwise_xor=xor __and__=and __or__=or __xor__=xor "
    "bitwise_left_shift=shift_left bitwise_right_shift=shift_right_arithmetic "
    "__lshift__=shift_left __rshift__=shift_right_arithmetic shift_left "
    "shift_right_arithmetic",
    lambda own: lambda r, out, *inputs, **_: floating(r, out, own, *inputs),
)
_same(
    "eq ne lt le gt ge",
    lambda own: lambda r, out, a, b: r.apply(own, (a, b), torch.bool, r.common(a, b)),
)
RULES["approx::tanh"] = lambda r, out, x: floating(r, out, "approx_tanh", x)


def _rounding(own):
    def apply(r, out, x):
        return floating(r, out, own, x) if out.dtype.is_floating_point else r.value(x, out.dtype)

    return apply


_same("floor ceil", _rounding)


@rule("round")
def _round(r, out, x, *, decimals=0):
    if decimals:
        raise UnsupportedError("expected round to whole numbers but got decimals")
    return _rounding("round")(r, out, x)


def _scaled(r, out, x, alpha):
    return x if alpha == 1 else r.apply("mul", (x, alpha), out.dtype, out.dtype)


@rule("add", "prims::add")
def _add(r, out, a, b, *, alpha=1):
    if out.dtype == torch.bool:
        return floating(r, out, "or", a, b)
    gradients = [r.value(x) for x in (a, b)]
    if all(isinstance(x, Scattered) for x in gradients):
        first, second = gradients
        return Scattered(out.shape, out.dtype, first.entries + second.entries)
    return floating(r, out, "add", a, _scaled(r, out, b, alpha))


@rule("sub", "prims::sub")
def _sub(r, out, a, b, *, alpha=1):
    return floating(r, out, "sub", a, _scaled(r, out, b, alpha))


@rule("rsub")
def _rsub(r, out, a, b, alpha=1):
    return floating(r, out, "sub", b, _scaled(r, out, a, alpha))


@rule("mul", "prims::mul")
def _mul(r, out, a, b):
    return floating(r, out, "and" if out.dtype == torch.bool else "mul", a, b)


@rule("div", "true_divide", "prims::div")
def _div(r, out, a, b, *, rounding_mode=None):
    if rounding_mode is None:
        return floating(r, out, "div", a, b)
    if rounding_mode == "floor":
        return floating(r, out, "floor_divide", a, b)
    quotient = floating(r, out, "div", a, b)
    return _trunc(r, out, quotient)


@rule("floor_divide")
def _floor_divide(r, out, a, b):
    return floating(r, out, "floor_divide", a, b)


@rule("remainder", "prims::remainder")
def _remainder(r, out, a, b):
    return floating(r, out, "remainder", a, b)


@rule("fmod", "prims::fmod")
def _fmod(r, out, a, b):
    return floating(r, out, "rem", a, b)


@rule("trunc", "fix", "prims::trunc")
def _trunc(r, out, x):
    if not out.dtype.is_floating_point:
        return r.value(x, out.dtype)
    down, up = floating(r, out, "floor", x), floating(r, out, "ceil", x)
    negative = r.apply("lt", (x, 0), torch.bool, out.dtype)
    return _where(r, out, negative, up, down)


@rule("frac")
def _frac(r, out, x):
    return floating(r, out, "sub", x, _trunc(r, out, x))


@rule("abs", "prims::abs")
def _abs(r, out, x):
    return r.value(x, out.dtype) if out.dtype == torch.bool else floating(r, out, "abs", x)


@rule("reciprocal", "prims::reciprocal")
def _reciprocal(r, out, x):
    return floating(r, out, "div", 1, x)


@rule("log10")
def _log10(r, out, x):
    return floating(r, out, "mul", floating(r, out, "log", x), 1 / math.log(10))


@rule("tan", "prims::tan")
def _tan(r, out, x):
    return floating(r, out, "div", floating(r, out, "sin", x), floating(r, out, "cos", x))


@rule("cosh", "prims::cosh")
def _cosh(r, out, x):
    e = floating(r, out, "exp", floating(r, out, "abs", x))
    return floating(r, out, "mul", 0.5, floating(r, out, "add", e, _reciprocal(r, out, e)))


@rule("sinh", "prims::sinh")
def _sinh(r, out, x):
    e = floating(r, out, "expm1", x)
    rest = floating(r, out, "div", e, floating(r, out, "add", e, 1))
    return floating(r, out, "mul", 0.5, floating(r, out, "add", e, rest))


@rule("relu")
def _relu(r, out, x):
    return floating(r, out, "max", x, 0)


@rule("silu")
def _silu(r, out, x):
    return floating(r, out, "mul", x, floating(r, out, "logistic", x))


@rule("gelu")
def _gelu(r, out, x, *, approximate="none"):
    if approximate == "tanh":
        cube = floating(r, out, "mul", x, floating(r, out, "square", x))
        inner = floating(r, out, "add", x, floating(r, out, "mul", 0.044715, cube))
        part = floating(r, out, "tanh", floating(r, out, "mul", math.sqrt(2 / math.pi), inner))
    else:
        part = floating(r, out, "erf", floating(r, out, "mul", x, math.sqrt(0.5)))
    half = floating(r, out, "mul", 0.5, x)
    return floating(r, out, "mul", half, floating(r, out, "add", 1, part))


@rule("softplus")
def _softplus(r, out, x, beta=1, threshold=20):
    scaled = floating(r, out, "mul", x, beta)
    small = floating(
        r, out, "log1p", floating(r, out, "exp", floating(r, out, "min", scaled, threshold))
    )
    large = r.apply("gt", (scaled, threshold), torch.bool, out.dtype)
    return _where(r, out, large, x, floating(r, out, "div", small, beta))


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
    x = x if min is None else floating(r, out, "max", x, min)
    return r.value(x, out.dtype) if max is None else floating(r, out, "min", x, max)


@rule("clamp_min")
def _clamp_min(r, out, x, min):  # noqa: A002
    return floating(r, out, "max", x, min)


@rule("clamp_max")
def _clamp_max(r, out, x, max):  # noqa: A002
    return floating(r, out, "min", x, max)


# ---- Casts, constants, copies.


@rule("_to_copy", "prims::convert_element_type", "to")
def _to_copy(r, out, x, *_, **__):
    return r.value(x, out.dtype)


@rule("clone", "alias", "lift_fresh", "contiguous", "view_of", "prims::view_of", "positive",
      "_conj", "resolve_conj", "resolve_neg", "detach")  # fmt: skip
def _copy(r, out, x, *_, **__):
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
    "; in place of `and`, `or` and `not` use &, | and ~, of `a < b < c` (a < b) & (b < c), of "
    "`a in (1, 2)` (a == 1) | (a == 2), of min and max torch.minimum and torch.maximum"
)
NO_INDEX = (
    "a traced value has no number while the mod is recorded: what it indexes has to be a tensor, as "
    "by torch.as_tensor, and not an array of NumPy or a list; in place of loops over `range` of it "
    "choose by torch.where(condition, a, b)"
)


_RANDOM = "; attention has dropout= and seed= of its own"
_OF_ELEMENTS = "; its shape would depend on values: use torch.where(condition, a, b)"
_REFUSED = {"dropout": _RANDOM, "nonzero": _OF_ELEMENTS, "unique": _OF_ELEMENTS}
# On captures alone they are computed in each call.
_OF_SCALARS = {"sort": "; sort outside of the mod", "topk": "; choose outside of the mod"}


def refusal(func, name, of_scalars):
    """Why a mod may not contain an operation; None if it may."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        return _RANDOM
    words = {**_REFUSED, **_OF_SCALARS} if of_scalars else _REFUSED
    return next((hint for word, hint in words.items() if word in name), None)


# ---- Functions that a mod may call and that are not operators.

SHAPES = {
    getattr(torch.Tensor, name).__get__
    for name in ("shape", "ndim", "nbytes", "T", "mT")
    if hasattr(getattr(torch.Tensor, name, None), "__get__")
} | {torch.Tensor.size, torch.Tensor.numel, torch.Tensor.nelement, torch.Tensor.__len__,
     torch.Tensor.stride, torch.Tensor.dim}  # fmt: skip


DETACHES = {
    torch.detach, torch.Tensor.detach, torch.Tensor.detach_, torch.Tensor.data.__get__,
    torch.ops.aten.detach.default,
}  # fmt: skip
PRODUCTS = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__}
VALUES = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__}

# Views with a conjugate or negative bit are resolved to numbers: values have no such bits.
RESOLVED = {
    torch.ops.aten._conj.default: torch.ops.aten.conj_physical.default,
    torch.ops.aten._neg_view.default: torch.ops.aten.neg.default,
}
