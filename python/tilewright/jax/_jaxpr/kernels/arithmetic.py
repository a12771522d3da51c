"""Elementwise operations on Values, and the integer facts that indices need."""

from ...._dtypes import bits_of, is_float, is_integer
from .program import Affine

# ---- Operands of one shape.


def broadcast(t, value, shape):
    """A scalar, or a tile with extents of 1, over a shape of the same rank."""
    shape = tuple(shape)
    if value.shape == shape:
        return value
    if value.is_constant:
        return t.number(value.constant, value.dtype, shape)
    affine = value.affine
    if affine is not None:
        steps = affine.steps or (0,) * len(shape)
        kept = value.shape or shape
        steps = tuple(s if k == n else 0 for s, k, n in zip(steps, kept, shape, strict=True))
        affine = Affine(affine.offset, affine.terms, steps)
    return t.program.emit("broadcast", [value], value.dtype, shape, affine=affine)


def elementwise(t, op, operands, dtype, shape, attributes=None, **facts):
    operands = [broadcast(t, operand, shape) for operand in operands]
    return t.program.emit(op, operands, dtype, shape, attributes, **facts)


def cast(t, value, dtype):
    if value.dtype == dtype:
        return value
    if value.is_constant and not (is_float(value.dtype) and not is_float(dtype)):
        return t.number(value.constant, dtype, value.shape)
    affine = affine_of(value) if is_index(dtype) and is_integer(value.dtype) else None
    truth = value if value.dtype == "bool" else None
    return t.program.emit("cast", [value], dtype, value.shape, affine=affine, truth=truth)


# ---- What is known of integers: enough to see slices in index tiles and masks that are all true.


def is_index(dtype):
    return dtype in ("i32", "i64")


def affine_of(value):
    """The affine form of an integer; a scalar without one is a term of its own."""
    if value.affine is not None:
        return value.affine
    if value.rank == 0 and is_index(value.dtype):
        return Affine(0, ((value, 1),), ())
    return None


def affine_sum(a, b, sign):
    if a is None or b is None:
        return None
    rank = max(len(a.steps), len(b.steps))
    steps = [
        x + sign * y for x, y in zip(a.steps or (0,) * rank, b.steps or (0,) * rank, strict=True)
    ]
    factors = dict(a.terms)
    for value, factor in b.terms:
        factors[value] = factors.get(value, 0) + sign * factor
    terms = tuple((value, factor) for value, factor in factors.items() if factor)
    return Affine(a.offset + sign * b.offset, terms, tuple(steps))


def affine_product(a, b):
    if a is None or b is None:
        return None
    if a.terms or any(a.steps):
        a, b = b, a
    if a.terms or any(a.steps):
        return None
    factor = a.offset
    terms = tuple((value, factor * by) for value, by in b.terms) if factor else ()
    return Affine(factor * b.offset, terms, tuple(factor * step for step in b.steps or a.steps))


def total(t, a, b):
    """a + b of index tiles."""
    affine = affine_sum(affine_of(a), affine_of(b), 1)
    return elementwise(t, "add", [a, b], a.dtype, a.shape or b.shape, affine=affine)


def product(t, a, factor):
    """factor * a of an index tile."""
    if factor == 1:
        return a
    by = t.number(factor, a.dtype, a.shape)
    affine = affine_product(a.affine, by.affine)
    return t.program.emit("mul", [a, by], a.dtype, a.shape, affine=affine)


def range_of(value):
    """(lowest, highest) element of an integer tile when it does not depend on traced scalars."""
    affine = value.affine
    if affine is None or affine.terms or 0 in value.shape:
        return None
    low = high = affine.offset
    for extent, step in zip(value.shape, affine.steps, strict=True):
        low += min(0, step * (extent - 1))
        high += max(0, step * (extent - 1))
    limit = 1 << (bits_of(value.dtype) - 1)
    return (low, high) if -limit <= low and high < limit else None


def decided(op, a, b):
    """The result of a comparison of integers whose ranges decide it; None when they do not."""
    ranges = range_of(a), range_of(b)
    if None in ranges:
        return None
    (a_low, a_high), (b_low, b_high) = ranges
    if op in ("gt", "ge"):
        return decided({"gt": "lt", "ge": "le"}[op], b, a)
    if op == "lt":
        return True if a_high < b_low else False if a_low >= b_high else None
    if op == "le":
        return True if a_high <= b_low else False if a_low > b_high else None
    apart = a_high < b_low or b_high < a_low
    same = a_low == a_high == b_low == b_high
    if op == "eq":
        return False if apart else True if same else None
    return True if apart else False if same else None
