"""Traced scalars with the dtypes of a framework, and elementwise operations on them.

Every integer has bounds, from the core's range analysis. They decide comparisons, such as jnp's
test for negative indices. An int32 is carried as an i64, like all positions in the library; its
bounds tell whether it may have to be wrapped as an int32 wraps.
"""

import abc
import operator
from typing import Any

from . import _core
from ._errors import UnsupportedError

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1  # the core's limits of bounds


class Number:
    """A traced scalar; `low` and `high` bound an integer or bool, `wide` is an unrounded float."""

    __slots__ = ("core", "high", "low", "wide")

    def __init__(self, core, low=None, high=None):
        self.core, self.low, self.high, self.wide = core, low, high, None


class Dtypes(abc.ABC):
    """What numbers need to know of a framework's dtypes. Constants are NumPy scalars."""

    index: Any = None  #: the dtype of positions
    boolean: Any = None
    loaded: Any = (
        None  #: bounds that int32 elements of arrays are taken to keep; None: their dtype's
    )

    @abc.abstractmethod
    def name(self, dtype):
        """The core's name for the dtype of an array."""

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
        """A scalar of the core, which may exceed the limits, wrapped into them."""

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
        """A core value as a Number, a Python number as a constant."""
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
        """An operation of ELEMENTWISE on Numbers and constants; at least one is a Number."""
        function, op = self._operations[name]
        bounds = self._bounds(op, elements, dtype) if op is not None else None
        if bounds is not None and dtype == self.dtypes.boolean and bounds[0] == bounds[1]:
            return self.dtypes.constant(bool(bounds[0]), dtype)
        return self.number(function(*map(operand, elements)), dtype, bounds)

    def _bounds(self, op, elements, dtype):
        """(low, high) of the result of an operation of the tile IR; None if unknown."""
        known = [limits(x) for x in elements]
        if None in known or not all(_LEAST <= low <= high <= _MOST for low, high in known):
            return None
        out = self.dtypes.carried(dtype)
        chosen = elements[1:] if op == "select" else elements
        dtypes = (x.core.dtype for x in chosen if isinstance(x, Number))
        if op == "clamp":
            known = [known[1], known[0], known[2]]  # the core's order: the value first
        if op == "square":
            size = _core.integer_range("abs", out, out, known)
            return size and _core.integer_range("mul", out, out, [size, size])
        return _core.integer_range(op, next(dtypes, out), out, known)

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
    """A gradient before it was rounded to a narrow float, for summing."""
    return x if getattr(x, "wide", None) is None else x.wide


def operand(x):
    """The number as the core takes it: a traced scalar or a Python number."""
    return x.core if isinstance(x, Number) else x.item()


def limits(x):
    """(low, high) of an integer or bool; None for others."""
    if isinstance(x, Number):
        return None if x.low is None else (x.low, x.high)
    return (int(x), int(x)) if x.dtype.kind in "iub" else None


# ---- Functions without a single operation in the core.


def _clamp(low, x, high):
    return _core.minimum(_core.maximum(x, low), high)


def _shift_right_logical(x, y):
    if not (isinstance(x, _core.Scalar) and x.dtype.startswith("u")):
        raise UnsupportedError("expected shift_right_logical of an unsigned integer; use >>")
    return x >> y


#: What front ends compute with: a function of the core, and the operation of the tile IR that gives
#: the bounds of its integers (None: unknown).
ELEMENTWISE: dict[str, tuple[Any, str | None]] = {
    "add": (operator.add, "add"),
    "add_any": (operator.add, "add"),
    "sub": (operator.sub, "sub"),
    "mul": (operator.mul, "mul"),
    "neg": (operator.neg, "neg"),
    "div": (_core.div, "div"),
    "rem": (_core.rem, "rem"),
    "floor_divide": (operator.floordiv, "floordiv"),
    "remainder": (operator.mod, "floormod"),
    "max": (_core.maximum, "max"),
    "min": (_core.minimum, "min"),
    "abs": (_core.abs, "abs"),
    "clamp": (_clamp, "clamp"),
    "where": (_core.where, "select"),
    "lt": (operator.lt, "lt"),
    "le": (operator.le, "le"),
    "gt": (operator.gt, "gt"),
    "ge": (operator.ge, "ge"),
    "eq": (operator.eq, "eq"),
    "ne": (operator.ne, "ne"),
    "sign": (_core.sign, "sign"),
    "square": (_core.square, "square"),
    "and": (operator.and_, "bitwise_and"),
    "or": (operator.or_, "bitwise_or"),
    "xor": (operator.xor, "bitwise_xor"),
    "not": (operator.invert, "bitwise_not"),
    "shift_left": (operator.lshift, "shift_left"),
    "shift_right_arithmetic": (operator.rshift, "shift_right"),
    "shift_right_logical": (_shift_right_logical, "shift_right"),
}
#: Those of the table of operations, by the names of JAX's primitives where there are any.
FUNCTIONS = {f.jax or f.op: f for f in _core.elementwise_functions() if f.op}
for _name, _function in FUNCTIONS.items():
    ELEMENTWISE[_name] = (getattr(_core, _function.name), None)
