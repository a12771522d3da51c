"""PyTorch's dtypes for traced values, and arrays with some of their indices given."""

import math

import numpy as np
import torch

from .. import _core
from .._dtypes import NAMES
from .._errors import UnsupportedError
from .._numbers import FUNCTIONS, Dtypes, Number
from .._values import MOST_ELEMENTS, Captured, Values

_NAMES = {getattr(torch, name): ours for name, ours in NAMES.items()}
_ANY = -(1 << 63), (1 << 63) - 1


class TorchDtypes(Dtypes):
    """int32 is carried as i64 and never wraps; floats no wider than the score as the score's
    dtype."""

    index = torch.int64
    boolean = torch.bool

    def __init__(self, score):
        self._float = "f64" if score == torch.float64 else "f32"

    def name(self, dtype):
        name = _NAMES.get(dtype)
        if name is None:
            raise UnsupportedError(f"expected a mod of real numbers and integers but got {dtype}")
        return name

    def is_float(self, dtype):
        return dtype.is_floating_point

    def carried(self, dtype):
        name = self.name(dtype)
        if name == "f64" or not dtype.is_floating_point:
            return "i64" if name == "i32" else name
        return self._float

    def limits(self, dtype):
        if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
            return None
        if dtype in (torch.int32, torch.int64):
            return _ANY
        info = torch.iinfo(dtype)
        return info.min, info.max

    def wrapped(self, core, dtype):
        return core

    def constant(self, value, dtype):
        if dtype == torch.bool:
            return np.bool_(value)
        if dtype.is_floating_point:
            return np.float64(value)
        if isinstance(value, float) and not math.isfinite(value):
            return np.int64(_ANY[0])  # what hardware returns; C++ leaves it undefined
        return np.int64(int(value))

    def convert(self, constant, dtype):
        return self.constant(constant.item(), dtype)

    def evaluate(self, name, constants, dtype):
        with np.errstate(all="ignore"):
            return self.constant(_EVALUATE[name](*constants), dtype)


def _trunc_div(a, b):
    return np.trunc(a / b) if a.dtype.kind == "f" or b.dtype.kind == "f" else int(a / b)


_EVALUATE = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "div": lambda a, b: a / b if a.dtype.kind == "f" else _trunc_div(a, b),
    "rem": np.fmod,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "max": np.maximum,
    "min": np.minimum,
    "abs": np.abs,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "sign": np.sign,
    "square": np.square,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift,
    "pow": np.power,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "round": np.rint,
    "isnan": np.isnan,
    "approx_tanh": np.tanh,
}
for _name, _function in FUNCTIONS.items():
    _of_numpy = getattr(np, _function.numpy) if _function.numpy else _function.value
    _EVALUATE.setdefault(_name, _of_numpy)


_OPERATIONS = {
    "isnan": (_core.isnan, None),
    "approx_tanh": (lambda x: _core.tanh(x, approx=True), None),
}


class Part:
    """A captured array with some of its indices given; `index` is None in the dimensions left."""

    def __init__(self, array: Captured, index):
        self.array, self.index = array, tuple(index)

    @property
    def shape(self):
        pairs = zip(self.array.shape, self.index, strict=True)
        return tuple(extent for extent, index in pairs if index is None)

    def at(self, more):
        """The part with indices for all dimensions left; None leaves one."""
        more = iter(more)
        return Part(self.array, [next(more) if i is None else i for i in self.index])

    def value(self):
        """The element, once no dimension is left. Negative indices count from the end."""
        return self.array.element(self.index, wraps=True)


class TorchValues(Values):
    """Operations on values of mods in PyTorch."""

    wrote_out = False  #: whether rows were written out, element by element

    def __init__(self, score_dtype):
        super().__init__(TorchDtypes(score_dtype), _OPERATIONS)

    def element(self, value):
        if isinstance(value, Part):
            if value.shape:
                raise UnsupportedError(
                    "expected a mod of scalar operations but got an array of shape "
                    f"{tuple(value.shape)}; index it"
                )
            return value.value()
        return super().element(value)

    def array_of(self, value):
        if not isinstance(value, Part):
            return super().array_of(value)
        self.wrote_out = True
        shape = value.shape
        if math.prod(shape) > MOST_ELEMENTS:
            raise UnsupportedError(
                f"expected rows of captured tensors of at most {MOST_ELEMENTS} elements but got "
                f"shape {tuple(shape)}; index it"
            )
        result = np.empty(shape, object)
        for place in np.ndindex(*shape):
            result[place] = value.at([self.index(i) for i in place]).value()
        return result

    def static_index(self, index, extent, dimension):
        """A constant index as a non-negative one; IndexError if out of bounds."""
        if isinstance(index, Number):
            return index
        index = int(index)
        if not -extent <= index < extent:
            raise IndexError(
                f"index {index} is out of bounds for dimension {dimension} with size {extent}"
            )
        return self.index(index + extent if index < 0 else index)
