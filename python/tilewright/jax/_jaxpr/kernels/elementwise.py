"""Rules of elementwise primitives and conversions."""

import jax.numpy as jnp
from jax import lax

from ...._dtypes import NARROW_FLOATS, bits_of, is_float, is_integer
from ...._errors import UnsupportedError
from ...._numbers import FUNCTIONS
from ..composites import COMPOSITE
from .arithmetic import broadcast, cast, decided, elementwise
from .translate import aval_of, rule

# ---- Arithmetic.

_BINARY = {
    "add": "add",
    "add_any": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "rem": "rem",
    "max": "max",
    "min": "min",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "shift_left": "shift_left",
    **{f.jax: f.op for f in FUNCTIONS.values() if f.jax and f.operands == 2},
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_FOLDS = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}


@rule(*_BINARY)
def _binary(t, eqn, a, b):
    op = _BINARY[eqn.primitive.name]
    dtype, shape = aval_of(eqn)
    if dtype == "bool":
        op = {"add": "bitwise_or", "mul": "bitwise_and"}.get(op, op)
    if a.is_constant and b.is_constant and is_integer(dtype) and op in _FOLDS:
        return t.number(_FOLDS[op](a.constant, b.constant), dtype, shape)
    if op == "add" and is_float(dtype):
        for dot, other in ((b, a), (a, b)):
            if dot.pending is not None and other.id != dot.id and other.shape == dot.shape:
                t.program.use(dot, accumulator=other)
                return dot
    facts = {}
    if dtype == "bool" and op == "bitwise_and" and None not in (a.first_of, b.first_of):
        facts["first_of"] = a.first_of | b.first_of
    return elementwise(t, op, [a, b], dtype, shape, **facts)


@rule(*_COMPARISONS)
def _compare(t, eqn, a, b):
    op = eqn.primitive.name
    _, shape = aval_of(eqn)
    known = decided(t, op, a, b) if is_integer(a.dtype) else None
    if known is not None:
        return t.number(known, "bool", shape)
    if a.truth is not None and b.is_constant and op in ("ne", "eq"):
        want = (op == "ne") == (b.constant == 0)
        if b.constant in (0, 1):
            return a.truth if want else elementwise(t, "bitwise_not", [a.truth], "bool", shape)
    return elementwise(t, op, [a, b], "bool", shape, first_of=_first_of(t, op, a, b))


def _first_of(t, op, a, b):
    """Ids of the scalars that are 0 where a comparison with 0 is true."""
    for x, y in ((a, b), (b, a)):
        if op == "eq" and x.rank == 0 and y.is_constant and y.constant == 0:
            form = t.program.index_form(x)
            if form is not None and form.offset == 0 and len(form.terms) == 1:
                return frozenset((form.terms[0][0],))
    return None


@rule("shift_right_arithmetic", "shift_right_logical")
def _shift_right(t, eqn, a, b):
    dtype, shape = aval_of(eqn)
    wanted = "iu"[eqn.primitive.name.endswith("logical")] + dtype[1:]
    if wanted == dtype:
        return elementwise(t, "shift_right", [a, b], dtype, shape)
    shifted = elementwise(t, "shift_right", [cast(t, a, wanted), cast(t, b, wanted)], wanted, shape)
    return cast(t, shifted, dtype)


_UNARY = {
    **{name: name for name in ("neg", "abs", "sign")},
    **{f.jax: f.op for f in FUNCTIONS.values() if f.jax and f.operands == 1},
}


@rule(*_UNARY)
def _unary(t, eqn, a):
    dtype, shape = aval_of(eqn)
    op = _UNARY[eqn.primitive.name]
    if op in ("neg", "abs", "sign") and dtype[0] == "u":
        if op == "abs":
            return a
        if op == "sign":
            return cast(t, elementwise(t, "ne", [a, t.like(a, 0)], "bool", shape), dtype)
    if a.is_constant and op == "neg":
        return t.number(-a.constant, dtype, shape)
    return elementwise(t, op, [a], dtype, shape)


@rule("not")
def _not(t, eqn, a):
    return elementwise(t, "bitwise_not", [a], *aval_of(eqn))


@rule("round")
def _round(t, eqn, a):
    if int(eqn.params["rounding_method"]) == int(lax.RoundingMethod.TO_NEAREST_EVEN):
        return elementwise(t, "round", [a], *aval_of(eqn))

    def away_from_zero(x):
        whole = jnp.floor(jnp.abs(x))
        return jnp.sign(x) * (whole + (jnp.abs(x) - whole >= 0.5).astype(x.dtype))

    return t.inline(away_from_zero, a)


@rule("pow")
def _pow(t, eqn, a, b):
    dtype, shape = aval_of(eqn)
    if not is_float(dtype):
        raise UnsupportedError(f"a power of {dtype}")
    return elementwise(t, "pow", [a, cast(t, b, dtype)], dtype, shape)


@rule("integer_pow")
def _integer_pow(t, eqn, a):
    exponent = eqn.params["y"]

    def power(x):
        result, square, n = None, x, abs(exponent)
        while n:
            if n & 1:
                result = square if result is None else result * square
            n >>= 1
            if n:
                square = square * square
        if result is None:
            return jnp.ones_like(x)
        return result if exponent > 0 else 1 / result

    dtype, _ = aval_of(eqn)
    if dtype in NARROW_FLOATS:
        return cast(t, t.inline(power, cast(t, a, "f32")), dtype)
    return t.inline(power, a)


@rule("select_n")
def _select_n(t, eqn, which, *cases):
    dtype, shape = aval_of(eqn)
    if len(cases) == 1:
        return cases[0]
    if which.dtype == "bool":
        if which.is_constant:
            return cases[bool(which.constant)]
        condition = which if which.rank == 0 else broadcast(t, which, shape)
        operands = [broadcast(t, cases[1], shape), broadcast(t, cases[0], shape)]
        return t.program.emit("select", [condition, *operands], dtype, shape)
    result = broadcast(t, cases[-1], shape)
    for index in range(len(cases) - 2, -1, -1):
        chosen = elementwise(t, "le", [which, t.like(which, index)], "bool", which.shape)
        result = t.program.emit(
            "select", [chosen, broadcast(t, cases[index], shape), result], dtype, shape
        )
    return result


@rule("clamp")
def _clamp(t, eqn, low, value, high):
    return elementwise(t, "clamp", [value, low, high], *aval_of(eqn))


@rule("is_finite")
def _is_finite(t, eqn, a):
    _, shape = aval_of(eqn)
    size = elementwise(t, "abs", [a], a.dtype, shape)
    return elementwise(t, "lt", [size, t.like(a, float("inf"))], "bool", shape)


# ---- Conversions.


@rule("convert_element_type")
def _convert(t, eqn, a):
    return cast(t, a, aval_of(eqn)[0])


@rule("bitcast_convert_type")
def _bitcast(t, eqn, a):
    dtype, shape = aval_of(eqn)
    if bits_of(dtype) != bits_of(a.dtype) or "bool" in (dtype, a.dtype):
        raise UnsupportedError(f"a bitcast of {a.dtype} to {dtype}, of another width")
    return a if a.dtype == dtype else t.program.emit("bitcast", [a], dtype, shape)


@rule("reduce_precision")
def _reduce_precision(t, eqn, a):
    kinds = {(8, 7): "bf16", (5, 10): "f16", (8, 23): "f32", (11, 52): "f64"}
    kinds |= {(5, 2): "f8e5m2"}
    bits = eqn.params["exponent_bits"], eqn.params["mantissa_bits"]
    if bits not in kinds:
        raise UnsupportedError(f"a format of {bits[0]} exponent and {bits[1]} mantissa bits")
    return cast(t, cast(t, a, kinds[bits]), a.dtype)


# ---- Composite functions.

_EXACT = ("square", "population_count", "clz")


@rule(*COMPOSITE)
def _composite(t, eqn, *operands):
    name, (dtype, _) = eqn.primitive.name, aval_of(eqn)
    if name in _EXACT or dtype not in NARROW_FLOATS:
        return t.inline(COMPOSITE[name], *operands)
    # Like every operation of the IR: computed in f32, rounded once.
    result = t.inline(COMPOSITE[name], *(cast(t, operand, "f32") for operand in operands))
    return cast(t, result, dtype)


@rule("erf_inv")
def _erf_inv(t, eqn, a):
    from jax._src.pallas import utils

    return t.inline(utils.erf_inv_lowering_helper, a)


@rule("reciprocal")
def _reciprocal(t, eqn, a):
    return elementwise(t, "div", [t.like(a, 1), a], *aval_of(eqn))


@rule("elementwise_inline_asm_p", "elementwise_inline_asm")
def _inline_asm(t, eqn, *operands):
    if "tanh.approx" not in eqn.params["asm"]:
        raise UnsupportedError("inline assembly other than approx_tanh's")
    return elementwise(t, "tanh", operands, *aval_of(eqn), {"approx": True})


@rule("multiple_of", "max_contiguous")
def _identity(t, eqn, *operands):
    return list(operands)
