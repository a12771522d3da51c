"""Rules of matrix products."""

import math

from ...._errors import UnsupportedError
from .arithmetic import cast
from .program import Value
from .shapes import check_tile, reshape, transpose
from .translate import aval_of, rule


def _precision(precision):
    text = str(precision[0] if isinstance(precision, tuple | list) else precision).upper()
    if "TF32_TF32_F32_X3" in text or text.endswith("HIGH"):
        return "tf32x3"
    return "tf32" if "TF32_TF32_F32" in text else "ieee"


def dot_result(dtype):
    """The dtype in which a dot of operands of this dtype accumulates."""
    if dtype in ("f16", "bf16", "f8e4m3", "f8e5m2"):
        return "f32"
    return "i32" if dtype in ("i8", "u8") else dtype


def _matrix(t, value, contracted, batch, contracted_last):
    """The operand as a matrix or a batch of them, its free extents, and whether it is
    transposed."""
    if value.transposed is not None:
        value, permutation = value.transposed
        contracted = [permutation[axis] for axis in contracted]
        batch = [permutation[axis] for axis in batch]
        free = [axis for axis in permutation if axis not in contracted and axis not in batch]
    else:
        free = [axis for axis in range(value.rank) if axis not in contracted and axis not in batch]
    groups = (free, contracted) if contracted_last else (contracted, free)
    plain = batch + groups[0] + groups[1]
    flipped = batch + groups[1] + groups[0]
    flips = plain != sorted(plain) and flipped == sorted(flipped)
    extent = {axis: value.shape[axis] for axis in range(value.rank)}
    sizes = [math.prod(extent[axis] for axis in group) for group in groups]
    free_extents = [extent[axis] for axis in free]
    batch_extents = [extent[axis] for axis in batch]
    value = transpose(t, value, flipped if flips else plain)
    if flips:
        sizes.reverse()
    leading = [math.prod(batch_extents)] if batch else []
    return reshape(t, value, leading + sizes), free_extents, batch_extents, flips


@rule("dot_general")
def _dot_general(t, eqn, a, b):
    dtype, shape = aval_of(eqn)
    check_tile(shape)
    (contracted_a, contracted_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    if a.dtype != b.dtype:
        common = "f64" if "f64" in (a.dtype, b.dtype) else "f32"
        a, b = cast(t, a, common), cast(t, b, common)
    if a.dtype == "bool":
        raise UnsupportedError("a product of bool")
    a, free_a, batch, flips_a = _matrix(t, a, list(contracted_a), list(batch_a), True)
    b, free_b, _, flips_b = _matrix(t, b, list(contracted_b), list(batch_b), False)
    accumulates_in = dot_result(a.dtype)
    attributes = {"transpose_a": flips_a, "transpose_b": flips_b}
    if a.dtype == "f32":
        attributes["precision"] = _precision(eqn.params.get("precision"))
    rows, columns = math.prod(free_a), math.prod(free_b)
    product = ([math.prod(batch)] if batch else []) + [rows, columns]
    result = Value(accumulates_in, tuple(product))

    def write(accumulator):
        operands = [a, b] + ([accumulator] if accumulator is not None else [])
        result.id = t.program.emit("dot", operands, result.dtype, result.shape, attributes).id

    consumer = t.consumers.get(eqn.outvars[0])
    if (
        consumer is not None
        and t.uses[eqn.outvars[0]] == 1
        and consumer.primitive.name in ("add", "add_any")
        and (dtype, shape) == (result.dtype, result.shape)
    ):
        result.pending = write  # an addition that follows becomes its accumulator
        return result
    write(None)
    return cast(t, reshape(t, result, shape), dtype)
