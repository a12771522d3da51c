"""Tile programs under construction: the core's builder, and what is known of its values."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .... import _core
from ...._dtypes import bits_of, is_integer

MAX_RANK = 8  # of tiles and of arrays


class Ref(NamedTuple):
    """An array of the caller, or the program's own memory."""

    id: int  # the builder's
    name: str


class IndexForm(NamedTuple):
    """An integer tile as offset + sum of factor * scalar + sum of step * (index along axis).
    Positions are assumed not to overflow their type."""

    offset: int
    terms: list  # (the builder's id of a scalar, its dtype, factor), each scalar once
    steps: list  # one int per axis; empty for a scalar


@dataclass(eq=False)
class Value:
    """A tile or scalar of the IR. Constants have no id until something uses them."""

    dtype: str
    shape: tuple
    id: int | None = None  # the builder's
    constant: Any = None  # the one value of every element, a Python number
    truth: "Value | None" = None  # the bool that a 0 or 1 was converted from
    first_of: frozenset | None = (
        None  # for a condition: ids of scalars that are all 0 where it is true
    )
    pending: Any = None  # emits the instruction at the first use; may take an accumulator
    transposed: "tuple | None" = None  # (source, permutation) if this is a transpose

    @property
    def rank(self):
        return len(self.shape)

    @property
    def is_constant(self):
        return self.constant is not None


class Program:
    """One kernel: a `ProgramBuilder` that takes and returns Values."""

    def __init__(self, name):
        self.builder = _core.ProgramBuilder(name)

    # ---- Parameters.

    def ref(self, name, dtype, shape, alias=-1):
        return Ref(self.builder.ref(name, dtype, list(shape), alias), name)

    def scratch(self, dtype, shape):
        return Ref(self.builder.scratch("scratch", dtype, list(shape)), "scratch")

    # ---- Values.

    def constant(self, value, dtype, shape=()):
        if isinstance(value, np.generic | np.ndarray):
            value = value.item()
        if is_integer(dtype):
            value = _wrapped(value, dtype)
        elif dtype != "bool":
            value = float(value)
        return Value(dtype, tuple(shape), constant=value)

    def use(self, value, accumulator=None):
        """The id of a value, emitting its instruction if that was deferred."""
        if value.id is None:
            if value.pending is not None:
                pending, value.pending = value.pending, None
                pending(accumulator)
            else:
                value.id = self._constant(value)
        return value.id

    def _constant(self, value):
        shape = [int(n) for n in value.shape]
        if is_integer(value.dtype) or value.dtype == "bool":
            number = _wrapped(value.constant, "i64")
            return self.builder.constant_int(value.dtype, shape, number)
        return self.builder.constant(value.dtype, shape, value.constant)

    # ---- Facts that the core knows about integers.

    def index_form(self, value):
        """The IndexForm of an i32 or i64; None for a tile without one, and for other dtypes."""
        if value.is_constant and value.dtype in ("i32", "i64"):
            return IndexForm(value.constant, [], [0] * value.rank)
        form = self.builder.index_form(value.id) if value.id is not None else None
        return IndexForm(*form) if form is not None else None

    def range(self, value):
        """(lowest, highest) element of an integer; None if it may be any value."""
        if value.is_constant:
            return int(value.constant), int(value.constant)
        return self.builder.range(value.id) if value.id is not None else None

    # ---- Instructions.

    def emit(self, op, operands, dtype, shape, attributes=None, **facts):
        """An operation with one result. `attributes` are those of `ProgramBuilder.apply`."""
        shape = tuple(int(n) for n in shape)
        ids = [self.use(operand) for operand in operands]
        result = Value(dtype, shape, **facts)
        result.id = self.builder.apply(op, ids, dtype, list(shape), **(attributes or {}))
        return result

    def for_loop(self, low, high, carried, body):
        """A loop of step 1; body(iv, carries) returns the next carries. Returns the last ones."""
        bounds = [self.use(value) for value in (low, high, self.constant(1, "i64"))]
        inits = [self.use(value) for value in carried]

        def step(iv, ids):
            return self._used(body(Value("i64", (), id=iv), self._like(carried, ids)))

        return self._like(carried, self.builder.for_loop(*bounds, inits, step))

    def while_loop(self, carried, condition, body):
        """condition(carries) returns a bool, body(carries) the next carries."""
        inits = [self.use(value) for value in carried]
        ids = self.builder.while_loop(
            inits,
            lambda ids: self.use(condition(self._like(carried, ids))),
            lambda ids: self._used(body(self._like(carried, ids))),
        )
        return self._like(carried, ids)

    def if_else(self, condition, like, then_branch, else_branch):
        """`like`: Values of the dtypes and shapes that both branches return."""
        ids = self.builder.if_else(
            self.use(condition),
            lambda: self._used(then_branch()),
            lambda: self._used(else_branch()),
        )
        return self._like(like, ids)

    def _used(self, values):
        return [self.use(value) for value in values]

    @staticmethod
    def _like(values, ids):
        return [Value(v.dtype, v.shape, id=i) for v, i in zip(values, ids, strict=True)]


def _wrapped(value, dtype):
    """An integer wrapped to its dtype."""
    bits, value = bits_of(dtype), int(value)
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype[0] == "i" and value >> (bits - 1) else value
