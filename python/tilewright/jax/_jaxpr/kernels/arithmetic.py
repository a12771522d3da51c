"""Elementwise operations on Values."""

from .... import _core
from ...._dtypes import is_float


def broadcast(t, value, shape):
    """A scalar, or a tile with extents of 1, over a shape of the same rank."""
    shape = tuple(shape)
    if value.shape == shape:
        return value
    if value.is_constant:
        return t.number(value.constant, value.dtype, shape)
    return t.program.emit("broadcast", [value], value.dtype, shape)


def elementwise(t, op, operands, dtype, shape, attributes=None, **facts):
    operands = [broadcast(t, operand, shape) for operand in operands]
    return t.program.emit(op, operands, dtype, shape, attributes, **facts)


def cast(t, value, dtype):
    if value.dtype == dtype:
        return value
    if value.is_constant and not (is_float(value.dtype) and not is_float(dtype)):
        return t.number(value.constant, dtype, value.shape)
    truth = value if value.dtype == "bool" else None
    return t.program.emit("cast", [value], dtype, value.shape, truth=truth)


def total(t, a, b):
    """a + b of index tiles."""
    return elementwise(t, "add", [a, b], a.dtype, a.shape or b.shape)


def product(t, a, factor):
    """factor * a of an index tile."""
    if factor == 1:
        return a
    by = t.number(factor, a.dtype, a.shape)
    return t.program.emit("mul", [a, by], a.dtype, a.shape)


def decided(t, op, a, b):
    """The result of a comparison of integers if their ranges decide it, else None."""
    ranges = t.program.range(a), t.program.range(b)
    if None in ranges:
        return None
    low, high = _core.integer_range(op, a.dtype, "bool", ranges)
    return bool(low) if low == high else None
