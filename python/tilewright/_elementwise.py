"""Functions of traced scalars, including NumPy's functions applied to them.

Outside of a trace they compute with numbers and arrays, as NumPy does.
"""

# The classes of the extension module get methods here.
# mypy: disable-error-code="attr-defined, index, method-assign, misc, operator"

import functools
import operator

import numpy as np

from . import _core
from ._arrays import dtype_name
from ._captures import Row, Scalar, _View, is_of_other_front_end, row

_TABLE = {function.name: function for function in _core.elementwise_functions()}


def _sentence(function):
    text = function.meaning[0].upper() + function.meaning[1:] + "."
    return text + " `approx` allows the hardware's approximation." * function.approx


_DOCUMENTS = {
    **{name: _sentence(function) for name, function in _TABLE.items()},
    "abs": "The absolute value.",
    "sign": "-1, 0 or 1.",
    "isnan": "Whether x is not a number.",
    "minimum": "The smaller of two; NaN propagates.",
    "maximum": "The larger of two; NaN propagates.",
    "where": "Chooses by a traced condition: where(condition, if_true, if_false).",
}
_APPROXIMABLE = {name for name, function in _TABLE.items() if function.approx}
_OF_TWO = {name for name, function in _TABLE.items() if function.operands == 2}
_OF_TWO |= {"minimum", "maximum"}

#: What functions that NumPy lacks compute outside of a trace.
_PLAIN = {
    "sigmoid": lambda x: 1 / (1 + np.exp(np.negative(x))),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / np.asarray(x),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: np.multiply(x, np.exp(-np.logaddexp(0, np.negative(x)))),
    "softplus": lambda x: np.logaddexp(x, 0),
    "pow": np.power,
}


def _plain(name):
    found = _PLAIN.get(name) or getattr(np, name, None)
    return found or np.vectorize(_TABLE[name].value, otypes=[float])


def _function(name, document):
    core, plain = getattr(_core, name), _plain(name)

    def apply(*arguments, **options):
        traced = any(isinstance(x, Scalar | _View) or is_of_other_front_end(x) for x in arguments)
        if traced or _core.is_tracing():
            return core(*map(_operand, arguments), **options)
        return np.asarray(plain(*arguments))[()]

    def of_one(x):
        return apply(x)

    def of_one_or_less_exactly(x, approx=False):
        return apply(x, approx=approx)

    def of_two(x, y):
        return apply(x, y)

    def where(condition, if_true, if_false):
        return apply(condition, if_true, if_false)

    function = {"where": where, **dict.fromkeys(_OF_TWO, of_two)}.get(
        name, of_one_or_less_exactly if name in _APPROXIMABLE else of_one
    )
    function.__name__ = function.__qualname__ = name
    function.__doc__ = document
    return function


def _operand(value):
    """The operand as the core takes it: a capture of rank 0 becomes its value."""
    return value._capture if isinstance(value, _View) else value


FUNCTIONS = {name: _function(name, document) for name, document in _DOCUMENTS.items()}
globals().update(FUNCTIONS)


def clamp(x, min=None, max=None):  # noqa: A002
    """Bounds x: ``clamp(x, low, high)``; None means no bound."""
    x = _operand(x)
    x = x if min is None else FUNCTIONS["maximum"](x, min)
    return x if max is None else FUNCTIONS["minimum"](x, max)


FUNCTIONS["clamp"] = clamp


# ---- Rows.


def _folded(op, combine, values):
    values = row(values)
    if isinstance(values, Scalar) or not hasattr(values, "__iter__"):
        raise TypeError(
            f"[{op}] expected a row of a captured array but got {type(values).__name__}"
        )
    elements = list(values)
    if not elements:
        raise ValueError(f"[{op}] expected a row of at least one element but it is empty")
    return functools.reduce(combine, elements)


def dot(a: Row, b: Row) -> Scalar:
    """The sum of the products of two rows of captured arrays."""
    return sum(row(a) * row(b))


def sum(row: Row) -> Scalar:  # noqa: A001
    """The sum of a row of a captured array."""
    return _folded("sum", operator.add, row)


def max(row: Row) -> Scalar:  # noqa: A001
    """The largest element of a row of a captured array."""
    return _folded("max", FUNCTIONS["maximum"], row)


def min(row: Row) -> Scalar:  # noqa: A001
    """The smallest element of a row of a captured array."""
    return _folded("min", FUNCTIONS["minimum"], row)


# ---- NumPy's functions.


def _truth(x):
    return x.cast("bool") if isinstance(x, Scalar) else bool(x)


UFUNCS = {
    **{getattr(np, f.numpy): FUNCTIONS[f.name] for f in _TABLE.values() if f.numpy},
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

TILE_FUNCTIONS = {}  # NumPy functions on tiles; filled in by `_language`


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
    return function(*map(_number, inputs))


def _number(value):
    if isinstance(value, _View) and value.ndim == 0:
        return value[()]
    return value.item() if isinstance(value, np.ndarray | np.generic) else value


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


Scalar.__array_ufunc__ = _View.__array_ufunc__ = _array_ufunc
Scalar.__array_function__ = _array_function
Scalar.to = Scalar.astype = _to
Scalar.clamp = Scalar.clip = clamp
for _name in ("abs", "exp", "exp2", "log", "tanh", "sigmoid", "sqrt", "floor", "square"):
    setattr(Scalar, _name, FUNCTIONS[_name])


def _round(self, digits=None):
    if digits is not None:
        raise TypeError(
            f"[{_tracing()}] expected round(x) of a traced value without digits but got {digits!r}"
        )
    return FUNCTIONS["round"](self)


Scalar.__round__ = _round
Scalar.__floor__ = FUNCTIONS["floor"]  # math.floor
Scalar.__ceil__ = FUNCTIONS["ceil"]
Scalar.__divmod__ = lambda a, b: (a // b, a % b)
Scalar.__rdivmod__ = lambda b, a: (a // b, a % b)
