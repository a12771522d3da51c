"""Mods written in Python: traced scalars, captured arrays, the functions to use on them."""

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from . import _core
from ._arrays import Array, dtype_name, to_tensor

Scalar = _core.Scalar
Mod = _core.Mod
#: A function of traced scalars, or what a library or `parse_mod` made.
ModLike: TypeAlias = Callable[..., Any] | Mod


def capture(array: Array, name: str = "", differentiable: bool = True) -> "Capture":
    """An array that mods read by traced integers: ``slopes[h]``, ``bias[h, q - kv + 7]``.

    Any rank and any number of gathers, one inside the other too. An index outside is clamped. With
    one index too few the last dimension is a `Row`. The array is shared, not copied: values written
    later are seen by the next call. Float arrays get gradients unless ``differentiable=False``.
    """
    if isinstance(array, Scalar | Capture):
        raise TypeError(
            f"[capture] expected array to be an array but got {type(array).__name__}: "
            "use it as it is"
        )
    return Capture(array, name, differentiable)


class Capture:
    """What `capture` returns. `array` is what it was made from."""

    def __init__(self, array, name="", differentiable=True):
        self.array = array
        self._core = _core.capture(to_tensor("capture", "array", array), name, differentiable)

    @property
    def ndim(self):
        """Dimensions of the array."""
        return self._core.rank

    def __getitem__(self, index):
        return _element(self._core, index if isinstance(index, tuple) else (index,))

    def __repr__(self):
        return f"capture({self._core.tensor!r})"


def _element(capture, indices):
    rank = capture.rank
    if len(indices) > rank:
        raise IndexError(
            f"[capture] expected at most {rank} indices of an array of rank {rank} "
            f"but got {len(indices)}"
        )
    return capture.element(indices) if len(indices) == rank else _Partial(capture, indices)


class _Partial:
    """A captured array with some of its indices given: more indices, or a row."""

    def __init__(self, capture, indices):
        self._capture, self._indices = capture, indices

    def __getitem__(self, index):
        return _element(
            self._capture, self._indices + (index if isinstance(index, tuple) else (index,))
        )

    def row(self):
        if len(self._indices) != self._capture.rank - 1:
            raise IndexError(
                f"[capture] expected {self._capture.rank - 1} indices for a row of an array of "
                f"rank {self._capture.rank} but got {len(self._indices)}"
            )
        return Row(self._capture.row(self._indices))

    def __iter__(self):
        return iter(self.row())

    def __len__(self):
        return len(self.row())


class Row:
    """A short list of traced scalars with arithmetic element by element."""

    def __init__(self, elements):
        self._elements = list(elements)

    def __getitem__(self, index):
        return self._elements[index]

    def __iter__(self):
        return iter(self._elements)

    def __len__(self):
        return len(self._elements)


def _row(value):
    return value.row() if isinstance(value, _Partial) else value


def _elementwise(function):
    def apply(a, b):
        a, b = _row(a), _row(b)
        if not isinstance(a, Row):
            return Row(function(a, y) for y in b)
        if not isinstance(b, Row):
            return Row(function(x, b) for x in a)
        if len(a) != len(b):
            raise ValueError(f"[row] expected rows of one size but got {len(a)} and {len(b)}")
        return Row(map(function, a, b))

    return apply


for _name in ("add", "sub", "mul", "truediv"):
    _apply = _elementwise(getattr(operator, _name))
    for _class in (Row, _Partial):
        setattr(_class, f"__{_name}__", _apply)
        setattr(_class, f"__r{_name}__", lambda a, b, apply=_apply: apply(b, a))


def dot(a: "Row", b: "Row") -> Scalar:
    """The sum of the products of two rows of captured arrays."""
    return sum(_row(a) * _row(b))


def sum(row: "Row") -> Scalar:  # noqa: A001
    """The sum of a row of a captured array."""
    return functools.reduce(operator.add, _row(row))


def max(row: "Row") -> Scalar:  # noqa: A001
    """The largest element of a row of a captured array."""
    return functools.reduce(_core.maximum, _row(row))


def _function(name, document):
    core = getattr(_core, name)

    @functools.wraps(core, updated=())
    def function(*arguments, **options):
        return core(*map(_operand, arguments), **options)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = document
    return function


def _operand(value):
    return value._core if isinstance(value, Capture) else value


_DOCUMENTS = {
    "exp": "e to the power of x; `approx` allows the hardware's approximation.",
    "exp2": "2 to the power of x.",
    "expm1": "exp(x) - 1, exact for small x.",
    "log": "The natural logarithm.",
    "log2": "The logarithm to base 2.",
    "log1p": "log(1 + x), exact for small x.",
    "tanh": "The hyperbolic tangent; `approx` allows the hardware's approximation.",
    "sigmoid": "1 / (1 + exp(-x)).",
    "erf": "The error function.",
    "sin": "The sine.",
    "cos": "The cosine.",
    "sqrt": "The square root.",
    "rsqrt": "1 / sqrt(x).",
    "reciprocal": "1 / x.",
    "square": "x * x.",
    "abs": "The absolute value.",
    "sign": "-1, 0 or 1.",
    "floor": "Rounds towards minus infinity.",
    "ceil": "Rounds towards infinity.",
    "round": "Rounds to the nearest integer, ties to even.",
    "isnan": "Whether x is not a number.",
    "relu": "max(x, 0).",
    "softplus": "log(1 + exp(x)) without overflow.",
    "pow": "x to the power of y.",
    "minimum": "The smaller of two; NaN propagates.",
    "maximum": "The larger of two; NaN propagates.",
    "where": "Chooses by a traced condition: where(condition, if_true, if_false).",
}
FUNCTIONS = {name: _function(name, document) for name, document in _DOCUMENTS.items()}
globals().update(FUNCTIONS)


def clamp(x, min=None, max=None):  # noqa: A002
    """Bounds x: ``clamp(x, low, high)``; None: not."""
    x = _operand(x)
    x = x if min is None else FUNCTIONS["maximum"](x, min)
    return x if max is None else FUNCTIONS["minimum"](x, max)


FUNCTIONS["clamp"] = clamp


def _truth(x):
    return x.cast("bool") if isinstance(x, Scalar) else bool(x)


UFUNCS = {
    **{getattr(np, name): FUNCTIONS[name] for name in _DOCUMENTS if hasattr(np, name)},
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.floor_divide: operator.floordiv,
    np.remainder: operator.mod,
    np.power: operator.pow,
    np.negative: operator.neg,
    np.positive: operator.pos,
    np.absolute: FUNCTIONS["abs"],
    np.rint: FUNCTIONS["round"],
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
    np.bitwise_xor: operator.xor,
    np.invert: operator.invert,
    np.left_shift: operator.lshift,
    np.right_shift: operator.rshift,
    np.logical_and: lambda a, b: _truth(a) & _truth(b),
    np.logical_or: lambda a, b: _truth(a) | _truth(b),
    np.logical_xor: lambda a, b: _truth(a) ^ _truth(b),
    np.logical_not: lambda a: ~_truth(a),
}
ARRAY_FUNCTIONS = {np.where: FUNCTIONS["where"], np.clip: FUNCTIONS["clamp"]}

TILE_FUNCTIONS = {}  # of NumPy, in kernels; `_language` knows them


def _tracing():
    return "kernel" if _core.lang.in_kernel() else "mod"


def _array_ufunc(self, ufunc, method, *inputs, **options):
    function = UFUNCS.get(ufunc)
    if function is None or method != "__call__" or options:
        raise TypeError(
            f"[{_tracing()}] expected a NumPy function that tilewright knows on a traced value but "
            f"got np.{ufunc.__name__}{'' if method == '__call__' else '.' + method}"
        )
    for value in inputs:
        if isinstance(value, np.ndarray) and value.ndim > 0:
            raise TypeError(
                f"[{_tracing()}] expected a scalar but got an array of shape {value.shape}: "
                + (
                    "arrays go in as inputs of the kernel"
                    if _core.lang.in_kernel()
                    else "index arrays through tw.capture(array)"
                )
            )
    return function(*(x.item() if isinstance(x, np.ndarray | np.generic) else x for x in inputs))


def _array_function(self, function, types, arguments, options):
    known = ARRAY_FUNCTIONS.get(function)
    if known is None and _core.lang.in_kernel():
        known = TILE_FUNCTIONS.get(function)
    if known is None:
        raise TypeError(
            f"[{_tracing()}] expected a NumPy function that tilewright knows on a traced value but "
            f"got np.{function.__name__}"
        )
    return known(*arguments, **options)


def _to(self, dtype):
    """The scalar converted to a dtype (NumPy's, or its name)."""
    return self.cast(dtype_name("to", "dtype", dtype))


Scalar.__array_ufunc__ = _array_ufunc
Scalar.__array_function__ = _array_function
Scalar.to = Scalar.astype = _to
Scalar.clamp = Scalar.clip = clamp
for _name in ("abs", "exp", "exp2", "log", "tanh", "sigmoid", "sqrt", "floor", "square"):
    setattr(Scalar, _name, FUNCTIONS[_name])


def as_mod(op, argument, function, is_mask):
    """A Mod of a Python function or of a Mod; TypeError for anything else or the other kind."""
    form = "(b, h, q_idx, kv_idx)" if is_mask else "(score, b, h, q_idx, kv_idx)"
    if isinstance(function, Mod):
        if function.is_mask != is_mask:
            other = "mask" if function.is_mask else "score"
            raise TypeError(f"[{op}] expected {argument} to be a function {form} but got a {other}")
        return function
    if not callable(function):
        raise TypeError(
            f"[{op}] expected {argument} to be a function {form} but got {type(function).__name__}"
        )
    try:
        inspect.signature(function).bind(*form.split(","))
    except ValueError:
        pass  # no signature to be had: the trace will tell
    except TypeError:
        raise TypeError(
            f"[{op}] expected {argument} to be a function {form} but got one of "
            f"{inspect.signature(function)}"
        ) from None
    return (
        Mod.mask(_returning_scalar(function)) if is_mask else Mod.score(_returning_scalar(function))
    )


def as_score_or_mask(op, function):
    """A Mod of a function with 5 (score) or 4 (mask) arguments without defaults."""
    if isinstance(function, Mod) or not callable(function):
        is_mask = not isinstance(function, Mod) or function.is_mask
        return as_mod(op, "mask_mod", function, is_mask)
    try:
        inspect.signature(function).bind(*range(5))
    except ValueError:
        pass
    except TypeError:
        return as_mod(op, "mask_mod", function, True)
    try:
        inspect.signature(function).bind(*range(4))
    except TypeError:
        return as_mod(op, "score_mod", function, False)
    return as_mod(op, "mask_mod", function, True)


def _returning_scalar(function):
    @functools.wraps(function)
    def call(*arguments):
        try:
            return _operand(function(*arguments))
        except IndexError as error:
            if "only integers" not in str(error):  # NumPy's text for an index it does not know
                raise
            raise TypeError(
                "[mod] expected arrays indexed by traced values to be captured: "
                "index tw.capture(array) instead of the array"
            ) from error

    return call


def and_masks(*masks: ModLike) -> Mod:
    """Where all of the mask mods are true: everywhere without any."""
    return _folded("and_masks", operator.and_, masks, _core.masks.noop())


def or_masks(*masks: ModLike) -> Mod:
    """Where any of the mask mods is true: nowhere without any."""
    return _folded("or_masks", operator.or_, masks, ~_core.masks.noop())


def _combining(name, combine):
    """The operator of two mask mods, either of which may be a function."""

    def apply(self, other):
        if not self.is_mask:
            raise TypeError(f"[{name}] expected a mask but got a score")
        return (
            combine(self, as_mod(name, "the other", other, True))
            if callable(other)
            else (NotImplemented)
        )

    return apply


for _name, _method in (("&", "and"), ("|", "or"), ("^", "xor")):
    _apply = _combining(_name, getattr(Mod, f"__{_method}__"))
    setattr(Mod, f"__{_method}__", _apply)
    setattr(Mod, f"__r{_method}__", _apply)  # they commute


def _folded(op, combine, masks, none):
    mods = [as_mod(op, f"mask {i}", mask, True) for i, mask in enumerate(masks)]
    return functools.reduce(combine, mods) if mods else none
