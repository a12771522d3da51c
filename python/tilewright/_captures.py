"""Captured arrays, which mods index with traced integers as NumPy arrays are indexed."""

import operator
import sys

import numpy as np

from . import _core
from ._arrays import to_tensor

Scalar = _core.Scalar
_LONGEST = 512  # the most elements that a mod unrolls


class _View:
    """A captured array with some of its dimensions indexed and others sliced.

    `places` has an index, static or traced, or a range for each dimension of the array.
    """

    def __init__(self, capture, places, array):
        self._capture, self._places, self._array = capture, places, array

    @property
    def shape(self):
        """Extents."""
        return tuple(len(place) for place in self._places if isinstance(place, range))

    @property
    def ndim(self):
        """Dimensions."""
        return len(self.shape)

    @property
    def dtype(self):
        """The element type, as the library names it ("f32")."""
        return self._capture.tensor.dtype

    def __len__(self):
        if not self.shape:
            raise TypeError("[capture] expected an array with dimensions but got a scalar")
        return self.shape[0]

    def __iter__(self):
        if len(self) > _LONGEST:
            raise TypeError(
                f"[capture] expected at most {_LONGEST} elements to iterate over but got "
                f"{len(self)}: index the capture by traced integers"
            )
        return (self[i] for i in range(len(self)))

    def __contains__(self, value):
        raise TypeError(
            "[capture] expected `in` of a Python collection but got a capture: compare its "
            "elements, as in (c[0] == x) | (c[1] == x)"
        )

    def __getitem__(self, index):
        given = _expanded(index if isinstance(index, tuple) else (index,), self.ndim)
        ranges = iter(given)
        places = [
            _place(place, next(ranges), dim) if isinstance(place, range) else place
            for dim, place in enumerate(self._places)
        ]
        if any(isinstance(place, range) for place in places):
            return _View(self._capture, places, self._array)
        if not _core.is_tracing() and not any(isinstance(place, Scalar) for place in places):
            return np.asarray(self._array)[tuple(places)]
        return _read(self._capture, places)

    def __array__(self, dtype=None, copy=None):
        raise TypeError(
            "[capture] expected a traced scalar but got a captured array as a NumPy array: index "
            "it by traced integers; its `array` is what it was made from"
        )

    def __repr__(self):
        return f"part {list(self.shape)} of {_shown(self._capture)}"


def _shown(core):
    name = f", {core.name!r}" if core.name else ""
    return f"capture({core.tensor!r}{name})"


class Capture(_View):
    """What `capture` returns. `array` is its source, which indexing outside of mods reads."""

    def __init__(self, array, name="", differentiable=True):
        self.array = array
        self._core = _core.capture(to_tensor("capture", "array", array), name, differentiable)
        super().__init__(self._core, [range(n) for n in self._core.tensor.shape], array)

    @property
    def name(self):
        """Its name in error messages; may be empty."""
        return self._core.name

    def __reduce__(self):
        array = self.array if isinstance(self.array, np.ndarray) else np.asarray(self.array)
        return Capture, (array, self._core.name, self._core.differentiable)

    def __repr__(self):
        return _shown(self._core)


def _expanded(index, ndim):
    """The index with one entry per dimension: an ellipsis and omitted dimensions become slices."""
    given = sum(entry is not Ellipsis for entry in index)
    if given > ndim:
        raise IndexError(
            f"[capture] expected at most {ndim} indices of an array of rank {ndim} but got {given}"
        )
    rest = [slice(None)] * (ndim - given)
    if given == len(index):
        return [*index, *rest]
    if len(index) - given > 1:
        raise IndexError("[capture] expected one ellipsis (...) but got several")
    at = next(i for i, entry in enumerate(index) if entry is Ellipsis)
    return [*index[:at], *rest, *index[at + 1 :]]


def _place(inside, index, dim):
    """The part of a dimension's range that an index or slice selects."""
    extent = len(inside)
    if isinstance(index, slice):
        try:
            return inside[index]
        except TypeError:
            raise TypeError(
                f"[capture] expected slices of numbers in dimension {dim} but got {index}: their "
                "lengths are part of the program; index by traced integers one by one"
            ) from None
    if isinstance(index, _View) and index.ndim == 0:
        index = index[()]
    if isinstance(index, Scalar):
        if inside == range(extent):
            return index
        # An index into a part counts from the ends of the part.
        wrapped = _core.where(index < 0, index + extent, index)
        return _core.clamp(wrapped, 0, max(extent - 1, 0)) * inside.step + inside.start
    _refuse_other_front_ends(index)
    is_bool = isinstance(index, bool | np.bool_)
    if is_bool or isinstance(index, _View) or not hasattr(index, "__index__"):
        shown = index if is_bool or index is None else type(index).__name__
        raise TypeError(
            "[capture] expected integers, slices of numbers or ... as indices but got "
            f"{shown} in dimension {dim}"
        )
    try:
        index = operator.index(index)
    except TypeError:  # an array
        raise TypeError(
            "[capture] expected integers, slices of numbers or ... as indices but got "
            f"{type(index).__name__} in dimension {dim}"
        ) from None
    if not -extent <= index < extent:
        raise IndexError(
            f"[capture] expected an index of {-extent} to {extent - 1} in dimension {dim} but got "
            f"{index}"
        )
    return inside[index]


def is_of_other_front_end(value):
    """Whether it is a traced value of JAX or PyTorch."""
    kind = type(value)
    return kind.__module__.startswith(("jax", "torch", "tilewright.torch")) and kind.__name__ in (
        *("DynamicJaxprTracer", "JVPTracer", "BatchTracer", "JaxprTracer"),
        *("FakeTensor", "FunctionalTensor", "Proxy", "Traced"),
    )


def _refuse_other_front_ends(index):
    if is_of_other_front_end(index):
        _core.abs(index)  # raises an error that names them


def _read(core, places):
    """Reads one element. In the checked mode the user's line is recorded with it."""
    if _core.checked():
        _core.exchange_source_line(*user_line())
    return core.element(tuple(places)) if places else core.value()


def user_line():
    """(file, line) of the innermost frame outside of the package; line 0 if there is none."""
    package = __name__.partition(".")[0]
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


class Row:
    """A short list of traced scalars with arithmetic element by element."""

    ndim = 1

    def __init__(self, elements):
        self._elements = list(elements)

    def __getitem__(self, index):
        if isinstance(index, Scalar):
            raise TypeError(
                "[row] expected an index that is a number but got a traced one: index the capture "
                "itself by traced integers"
            )
        found = self._elements[index]
        return Row(found) if isinstance(index, slice) else found

    def __iter__(self):
        return iter(self._elements)

    def __len__(self):
        return len(self._elements)

    def __repr__(self):
        return f"Row({len(self)} x {self._elements[0]!r})" if self._elements else "Row(0)"


def row(value):
    """A Row for anything that represents a row; other values unchanged."""
    if not isinstance(value, _View):
        return value
    if value.ndim == 0:
        return value[()]
    if value.ndim > 1:
        raise TypeError(
            f"[capture] expected a row, of one dimension, but got {value!r}: index it, as in "
            "table[h, q_idx]"
        )
    return Row(value)


def _elementwise(function):
    def apply(a, b):
        a, b = row(a), row(b)
        if not isinstance(a, Row) and not isinstance(b, Row):
            return function(a, b)
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
    for _class in (Row, _View):
        setattr(_class, f"__{_name}__", _apply)
        setattr(_class, f"__r{_name}__", lambda a, b, apply=_apply: apply(b, a))
