"""Traced scalars with the dtypes of a framework, and elementwise operations on them.

Every integer has bounds. They decide comparisons, such as jnp's test for negative indices, and tell
where an int32, which is carried as the i64 that the rest of the library knows positions as, may have
to be wrapped as int32 wraps.
"""

import abc
import operator
from typing import Any

from . import _core
from ._errors import UnsupportedError


class Number:
    """A traced scalar; `low` and `high` bound an integer or bool, and `wide` is what a float was
    before it was rounded."""

    __slots__ = ("core", "high", "low", "wide")

    def __init__(self, core, low=None, high=None):
        self.core, self.low, self.high, self.wide = core, low, high, None


class Dtypes(abc.ABC):
    """What numbers ask a framework. Constants are NumPy scalars."""

    index: Any = None  #: the dtype of positions
    boolean: Any = None
    loaded: Any = (
        None  #: bounds that int32 elements of arrays are taken to keep; None: their dtype's
    )

    @abc.abstractmethod
    def name(self, dtype):
        """The core's name of the dtype of an array."""

    @abc.abstractmethod
    def is_float(self, dtype):
        """Whether arrays of this dtype have gradients."""

    @abc.abstractmethod
    def carried(self, dtype):
        """The core's dtype, by name, that carries values of `dtype`."""

    @abc.abstractmethod
    def limits(self, dtype):
        """(lowest, highest) integer; None for other dtypes."""

    @abc.abstractmethod
    def wrapped(self, core, dtype):
        """A scalar of the core, which may lie outside of the limits, as one inside of them."""

    @abc.abstractmethod
    def constant(self, value, dtype):
        """A number as a constant."""

    @abc.abstractmethod
    def convert(self, constant, dtype):
        """A constant in another dtype."""

    @abc.abstractmethod
    def evaluate(self, name, constants, dtype):
        """An operation of ELEMENTWISE on constants."""


class Numbers:
    """Numbers with the dtypes of one framework."""

    def __init__(self, dtypes, operations=()):
        """`operations`: what the framework has besides ELEMENTWISE."""
        self.dtypes = dtypes
        self._operations = {**ELEMENTWISE, **dict(operations)}

    def number(self, core, dtype, bounds=None):
        """A core value as a Number; a plain Python one as a constant."""
        if not isinstance(core, _core.Scalar):
            return self.dtypes.constant(core, dtype)
        wanted = self.dtypes.carried(dtype)
        core = core if core.dtype == wanted else core.cast(wanted)
        if wanted == "bool":
            return Number(core, 0, 1)
        limits_ = self.dtypes.limits(dtype)
        if limits_ is None:
            return Number(core)
        if bounds is None or bounds[0] < limits_[0] or bounds[1] > limits_[1]:
            core, bounds = self.dtypes.wrapped(core, dtype), limits_
        return Number(core, *bounds)

    def apply(self, name, elements, dtype):
        """An operation of ELEMENTWISE on numbers and constants, at least one of them a Number."""
        function, bounds_of = self._operations[name]
        bounds = None
        known = [limits(x) for x in elements]
        if bounds_of is not None and None not in known:
            bounds = bounds_of(*known)
            if bounds is not None and dtype == self.dtypes.boolean and bounds[0] == bounds[1]:
                return self.dtypes.constant(bool(bounds[0]), dtype)
        return self.number(function(*map(operand, elements)), dtype, bounds)

    def convert(self, x, dtype):
        """A number or constant in another dtype."""
        if not isinstance(x, Number):
            return self.dtypes.convert(x, dtype)
        if self.dtypes.limits(dtype) is not None:
            return self.number(x.core, dtype, limits(x))
        result = self.number(x.core, dtype)
        if result.core.dtype in ("bf16", "f16") and x.core.dtype == "f32":
            result.wide = x
        return result


def unrounded(x):
    """A gradient that is to be summed, as it was before it was rounded to a narrow float."""
    return x if getattr(x, "wide", None) is None else x.wide


def operand(x):
    """As the core takes it: a traced scalar or a Python number."""
    return x.core if isinstance(x, Number) else x.item()


def limits(x):
    """(low, high) of an integer or bool; None for others."""
    if isinstance(x, Number):
        return None if x.low is None else (x.low, x.high)
    return (int(x), int(x)) if x.dtype.kind in "iub" else None


# ---- Functions that the core has no single operation for.


def _cbrt(x):
    return _core.sign(x) * _core.pow(_core.abs(x), 1 / 3)


def _clamp(low, x, high):
    return _core.minimum(_core.maximum(x, low), high)


def _shift_right_logical(x, y):
    if not (isinstance(x, _core.Scalar) and x.dtype.startswith("u")):
        raise UnsupportedError("expected shift_right_logical of an unsigned integer; use >>")
    return x >> y


# ---- Bounds of integer results from those of the operands; None: unknown.


def _corners(function):
    def bounds(a, b):
        values = [function(x, y) for x in a for y in b]
        return min(values), max(values)

    return bounds


def _floor_bounds(a, b):
    return _corners(operator.floordiv)(a, b) if b[0] > 0 else None


def _mod_bounds(a, b):
    if b[0] <= 0:
        return None
    return a if a[0] >= 0 and a[1] < b[0] else (0, b[1] - 1)


def _of_natural(bounds):
    """Truncation is flooring where the dividend is not negative."""
    return lambda a, b: bounds(a, b) if a[0] >= 0 else None


def _abs_bounds(a):
    low, high = sorted(map(abs, a))
    return (0, high) if a[0] <= 0 <= a[1] else (low, high)


def _decided(always, never):
    return lambda a, b: (1, 1) if always(a, b) else (0, 0) if never(a, b) else None


def _same(a, b):
    return a[0] == a[1] == b[0] == b[1]


def _apart(a, b):
    return a[1] < b[0] or b[1] < a[0]


def _max_bounds(a, b):
    return max(a[0], b[0]), max(a[1], b[1])


def _min_bounds(a, b):
    return min(a[0], b[0]), min(a[1], b[1])


ELEMENTWISE = {
    "add": (operator.add, lambda a, b: (a[0] + b[0], a[1] + b[1])),
    "sub": (operator.sub, lambda a, b: (a[0] - b[1], a[1] - b[0])),
    "mul": (operator.mul, _corners(operator.mul)),
    "neg": (operator.neg, lambda a: (-a[1], -a[0])),
    "div": (_core.div, _of_natural(_floor_bounds)),
    "rem": (_core.rem, _of_natural(_mod_bounds)),
    "floor_divide": (operator.floordiv, _floor_bounds),
    "remainder": (operator.mod, _mod_bounds),
    "max": (_core.maximum, _max_bounds),
    "min": (_core.minimum, _min_bounds),
    "abs": (_core.abs, _abs_bounds),
    "clamp": (_clamp, lambda low, x, high: _min_bounds(_max_bounds(x, low), high)),
    "where": (_core.where, lambda _, a, b: (min(a[0], b[0]), max(a[1], b[1]))),
    "lt": (operator.lt, _decided(lambda a, b: a[1] < b[0], lambda a, b: a[0] >= b[1])),
    "le": (operator.le, _decided(lambda a, b: a[1] <= b[0], lambda a, b: a[0] > b[1])),
    "gt": (operator.gt, _decided(lambda a, b: a[0] > b[1], lambda a, b: a[1] <= b[0])),
    "ge": (operator.ge, _decided(lambda a, b: a[0] >= b[1], lambda a, b: a[1] < b[0])),
    "eq": (operator.eq, _decided(_same, _apart)),
    "ne": (operator.ne, _decided(_apart, _same)),
    "sign": (_core.sign, lambda a: (-1, 1)),
    "square": (_core.square, lambda a: (0, max(a[0] ** 2, a[1] ** 2))),
    "and": (operator.and_, None),
    "or": (operator.or_, None),
    "xor": (operator.xor, None),
    "not": (operator.invert, None),
    "shift_left": (operator.lshift, None),
    "shift_right_arithmetic": (operator.rshift, None),
    "shift_right_logical": (_shift_right_logical, None),
    "add_any": (operator.add, None),
    "pow": (_core.pow, None),
    "logistic": (_core.sigmoid, None),
    "cbrt": (_cbrt, None),
}
for _name in "exp exp2 expm1 log log2 log1p tanh erf sin cos sqrt rsqrt".split():
    ELEMENTWISE[_name] = (getattr(_core, _name), None)
for _name in ("floor", "ceil", "round"):
    ELEMENTWISE[_name] = (getattr(_core, _name), None)
