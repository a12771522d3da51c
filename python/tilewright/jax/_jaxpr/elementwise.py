"""Rules of elementwise primitives, conversions and the integer facts that indices need."""

import operator

import jax.numpy as jnp
from jax import lax

from .text import Affine, UnsupportedError, bits_of, ir_dtype, is_float, is_integer
from .translate import is_key, rule

# ---- Operands of one shape.


def aval_of(eqn, index=0):
    aval = eqn.outvars[index].aval
    if is_key(aval):
        return "u32", (*aval.shape, *aval.dtype._impl.key_shape)
    return ir_dtype(aval.dtype), tuple(aval.shape)


def broadcast(t, value, shape):
    """A scalar, or a tile with extents of 1, over a shape of the same rank."""
    shape = tuple(shape)
    if value.shape == shape:
        return value
    if value.is_constant:
        return t.constant(value.constant, value.dtype, shape)
    affine = value.affine
    if affine is not None:
        steps = affine.steps or (0,) * len(shape)
        kept = value.shape or shape
        steps = tuple(s if k == n else 0 for s, k, n in zip(steps, kept, shape, strict=True))
        affine = Affine(affine.offset, affine.terms, steps)
    return t.writer.emit("broadcast", [value], value.dtype, shape, affine=affine)


def elementwise(t, op, operands, dtype, shape, attributes="", **facts):
    operands = [broadcast(t, operand, shape) for operand in operands]
    return t.writer.emit(op, operands, dtype, shape, attributes, **facts)


def cast(t, value, dtype):
    if value.dtype == dtype:
        return value
    if value.is_constant and not (is_float(value.dtype) and not is_float(dtype)):
        return t.constant(value.constant, dtype, value.shape)
    affine = affine_of(value) if _is_index(dtype) and is_integer(value.dtype) else None
    truth = value if value.dtype == "bool" else None
    return t.writer.emit("cast", [value], dtype, value.shape, affine=affine, truth=truth)


# ---- What is known of integers: enough to see slices in index tiles and masks that are all true.


def _is_index(dtype):
    return dtype in ("i32", "i64")


def affine_of(value):
    """The affine form of an integer; a scalar without one is a term of its own."""
    if value.affine is not None:
        return value.affine
    if value.rank == 0 and _is_index(value.dtype):
        return Affine(0, ((value, 1),), ())
    return None


def _affine_sum(a, b, sign):
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


def _affine_product(a, b):
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
    affine = _affine_sum(affine_of(a), affine_of(b), 1)
    return elementwise(t, "add", [a, b], a.dtype, a.shape or b.shape, affine=affine)


def product(t, a, factor):
    """factor * a of an index tile."""
    if factor == 1:
        return a
    by = t.constant(factor, a.dtype, a.shape)
    affine = _affine_product(a.affine, by.affine)
    return t.writer.emit("mul", [a, by], a.dtype, a.shape, affine=affine)


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


# ---- Arithmetic.

_NARROW = ("f16", "bf16", "f8e4m3", "f8e5m2")

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
        return t.constant(_FOLDS[op](a.constant, b.constant), dtype, shape)
    if op == "add" and is_float(dtype):
        for dot, other in ((b, a), (a, b)):
            if dot.pending is not None and other.name != dot.name and other.shape == dot.shape:
                t.writer.use(dot, accumulator=other)
                return dot
    affine = None
    if _is_index(dtype):
        if op in ("add", "sub"):
            affine = _affine_sum(affine_of(a), affine_of(b), 1 if op == "add" else -1)
        elif op == "mul":
            affine = _affine_product(affine_of(a), affine_of(b))
    facts = {}
    if dtype == "bool" and op == "bitwise_and" and None not in (a.first_of, b.first_of):
        facts["first_of"] = a.first_of | b.first_of
    return elementwise(t, op, [a, b], dtype, shape, affine=affine, **facts)


@rule(*_COMPARISONS)
def _compare(t, eqn, a, b):
    op = eqn.primitive.name
    _, shape = aval_of(eqn)
    known = decided(op, a, b) if is_integer(a.dtype) else None
    if known is not None:
        return t.constant(known, "bool", shape)
    if a.truth is not None and b.is_constant and op in ("ne", "eq"):
        want = (op == "ne") == (b.constant == 0)
        if b.constant in (0, 1):
            return a.truth if want else elementwise(t, "bitwise_not", [a.truth], "bool", shape)
    return elementwise(t, op, [a, b], "bool", shape, first_of=_first_of(op, a, b))


def _first_of(op, a, b):
    """Scalars that a comparison with 0 says are 0."""
    for x, y in ((a, b), (b, a)):
        if op == "eq" and x.rank == 0 and y.is_constant and y.constant == 0:
            affine = affine_of(x)
            if affine is not None and affine.offset == 0 and len(affine.terms) == 1:
                return frozenset((affine.terms[0][0],))
    return None


@rule("shift_right_arithmetic", "shift_right_logical")
def _shift_right(t, eqn, a, b):
    dtype, shape = aval_of(eqn)
    wanted = "iu"[eqn.primitive.name.endswith("logical")] + dtype[1:]
    if wanted == dtype:
        return elementwise(t, "shift_right", [a, b], dtype, shape)
    shifted = elementwise(t, "shift_right", [cast(t, a, wanted), cast(t, b, wanted)], wanted, shape)
    return cast(t, shifted, dtype)


_UNARY = """neg abs sign exp exp2 expm1 log log2 log1p tanh logistic erf sin cos sqrt rsqrt floor
            ceil""".split()


@rule(*_UNARY)
def _unary(t, eqn, a):
    dtype, shape = aval_of(eqn)
    op = eqn.primitive.name
    if op in ("neg", "abs", "sign") and dtype[0] == "u":
        if op == "abs":
            return a
        if op == "sign":
            return cast(t, elementwise(t, "ne", [a, t.like(a, 0)], "bool", shape), dtype)
    if a.is_constant and op == "neg":
        return t.constant(-a.constant, dtype, shape)
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
    if dtype in _NARROW:
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
        return t.writer.emit("select", [condition, *operands], dtype, shape)
    result = broadcast(t, cases[-1], shape)
    for index in range(len(cases) - 2, -1, -1):
        chosen = elementwise(t, "le", [which, t.like(which, index)], "bool", which.shape)
        result = t.writer.emit(
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
    return a if a.dtype == dtype else t.writer.emit("bitcast", [a], dtype, shape)


@rule("reduce_precision")
def _reduce_precision(t, eqn, a):
    kinds = {(8, 7): "bf16", (5, 10): "f16", (8, 23): "f32", (11, 52): "f64"}
    kinds |= {(5, 2): "f8e5m2"}
    bits = eqn.params["exponent_bits"], eqn.params["mantissa_bits"]
    if bits not in kinds:
        raise UnsupportedError(f"a format of {bits[0]} exponent and {bits[1]} mantissa bits")
    return cast(t, cast(t, a, kinds[bits]), a.dtype)


# ---- Functions made of others.


def _arctan(x):
    # Cephes' range reduction to |x| <= tan(pi / 8) and its polynomial.
    size = jnp.abs(x)
    big, middle = size > 2.414213562373095, size > 0.4142135623730950
    reduced = jnp.where(big, -1 / size, jnp.where(middle, (size - 1) / (size + 1), size))
    start = jnp.where(big, jnp.pi / 2, jnp.where(middle, jnp.pi / 4, 0.0)).astype(x.dtype)
    z = reduced * reduced
    if x.dtype == jnp.float64:
        top = [-8.750608600031904122785e-1, -1.615753718733365076637e1]
        top += [-7.500855792314704667340e1, -1.228866684490136173410e2, -6.485021904942025371773e1]
        bottom = [1.0, 2.485846490142306297962e1, 1.650270098316988542046e2]
        bottom += [4.328810604912902668951e2, 4.853903996359136964868e2, 1.945506571482613964425e2]
        numerator = denominator = 0.0
        for c in top:
            numerator = numerator * z + c
        for c in bottom:
            denominator = denominator * z + c
        tail = reduced + reduced * z * (numerator / denominator)
    else:
        poly = 8.05374449538e-2
        for c in (-1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1):
            poly = poly * z + c
        tail = reduced + reduced * z * poly
    return jnp.where(x < 0, -(start + tail), start + tail).astype(x.dtype)


def _arctan2(y, x):
    angle = _arctan(jnp.abs(y) / jnp.abs(x))
    angle = jnp.where((x == 0) & (y == 0), jnp.zeros_like(x), angle)
    angle = jnp.where(jnp.isinf(x) & jnp.isinf(y), jnp.full_like(x, jnp.pi / 4), angle)
    negative = (x < 0) | ((x == 0) & (1 / x < 0))
    angle = jnp.where(negative, jnp.pi - angle, angle)
    return jnp.where((y < 0) | ((y == 0) & (1 / y < 0)), -angle, angle).astype(x.dtype)


def _cbrt(x):
    size = jnp.abs(x)
    root = jnp.exp2(jnp.log2(size) * (1 / 3))
    root = root - (root - size / (root * root)) * (1 / 3)
    keep = (size == 0) | ~jnp.isfinite(size)
    return jnp.where(keep, x, jnp.sign(x) * root).astype(x.dtype)


def _population_count(x):
    bits = x.dtype.itemsize * 8
    word = lax.bitcast_convert_type(x, jnp.dtype(f"uint{bits}"))
    count = jnp.zeros_like(word)
    for bit in range(bits):
        count = count + ((word >> bit) & 1)
    return count.astype(x.dtype)


def _clz(x):
    bits = x.dtype.itemsize * 8
    word = lax.bitcast_convert_type(x, jnp.dtype(f"uint{bits}"))
    shift = 1
    while shift < bits:
        word = word | (word >> shift)
        shift *= 2
    return _population_count(~word).astype(x.dtype)


def _sinh(x):
    e = jnp.expm1(jnp.abs(x))
    half = jnp.where(jnp.isinf(e), _half_exp(jnp.abs(x)), (e + e / (e + 1)) * 0.5)
    return jnp.where(x < 0, -half, half)


def _half_exp(x):
    """exp(x) / 2, which may be finite where exp(x) is not."""
    root = jnp.exp(0.5 * x)
    return 0.5 * root * root


def _cosh(x):
    half = _half_exp(jnp.abs(x))
    return half + 0.25 / half


def _asinh(x):
    size = jnp.abs(x)
    square = size * size
    small = jnp.log1p(size + square / (1 + jnp.sqrt(square + 1)))
    large = jnp.log(size) + 0.6931471805599453
    result = jnp.where(size > 1e9, large, small)
    return jnp.where(x < 0, -result, result).astype(x.dtype)


def _acosh(x):
    near = jnp.log1p((x - 1) + jnp.sqrt((x - 1) * (x + 1)))
    return jnp.where(x > 1e9, jnp.log(x) + 0.6931471805599453, near)


def _polynomial(x, coefficients):
    total = jnp.zeros_like(x)
    for c in coefficients:
        total = total * x + c
    return total


def _erfc_tail(x):
    """Cephes' erfc of x > 0 that is not small, as exp(-x * x) times a rational function."""
    if x.dtype == jnp.float64:
        top = [2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687]
        top += [4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2]
        top += [9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2]
        bottom = [1.0, 1.32281951154744992508e1, 8.67072140885989742329e1]
        bottom += [3.54937778887819891062e2, 9.75708501743205489753e2, 1.82390916687909736289e3]
        bottom += [2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2]
        near = _polynomial(x, top) / _polynomial(x, bottom)
        top = [5.64189583547755073984e-1, 1.27536670759978104416, 5.01905042251180477414]
        top += [6.16021097993053585195, 7.40974269950448939160, 2.97886665372100240670]
        bottom = [1.0, 2.26052863220117276590, 9.39603524938001434673, 1.20489539808096656605e1]
        bottom += [1.70814450747565897222e1, 9.60896809063285878198, 3.36907645100081516050]
        far = _polynomial(x, top) / _polynomial(x, bottom)
        return jnp.exp(-x * x) * jnp.where(x < 8, near, far)
    near = [2.326819970068386e-2, -1.387039388740657e-1, 3.687424674597105e-1]
    near += [-5.824733027278666e-1, 6.210004621745983e-1, -4.944515323274145e-1]
    near += [3.404879937665872e-1, -2.741127028184656e-1, 5.638259427386472e-1]
    far = [-1.047766399936249e1, 1.297719955372516e1, -7.495518717768503, 2.921019019210786]
    far += [-1.015265279202700, 4.218463358204948e-1, -2.820767439740514e-1]
    far += [5.641895067754075e-1]
    q = 1 / x
    square = q * q
    return (
        jnp.exp(-x * x) * q * jnp.where(x < 2, _polynomial(square, near), _polynomial(square, far))
    )


def _erfc(x):
    size = jnp.abs(x)
    # Beyond 28 even f64 has no erfc left; infinity times 0 would be NaN.
    tail = _erfc_tail(jnp.clip(size, 1, 28))
    tail = jnp.where(jnp.isnan(x), x, jnp.where(x < 0, 2 - tail, tail))
    return jnp.where(size < 1, 1 - lax.erf(x), tail)


def _nextafter(x, y):
    word = jnp.dtype(f"int{x.dtype.itemsize * 8}")
    bits = lax.bitcast_convert_type(x, word)
    away = (x < y) == (x > 0)
    step = lax.bitcast_convert_type(bits + jnp.where(away, 1, -1).astype(word), x.dtype)
    tiny = lax.bitcast_convert_type(jnp.ones_like(bits), x.dtype)
    step = jnp.where(x == 0, jnp.where(y > 0, tiny, -tiny), step)
    return jnp.where(jnp.isnan(x) | jnp.isnan(y), x + y, jnp.where(x == y, y, step))


def _in_total_order(compare):
    """A comparison of sorts and searches: NaN comes after every number."""

    def compared(a, b):
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return compare(a, b)
        last = b != b if compare is operator.le else (a == a) & (b != b)
        return compare(a, b) | last

    return compared


#: Primitives that the tile IR has no operation for, in jnp.
COMPOSITE = {
    "lt_to": _in_total_order(operator.lt),
    "le_to": _in_total_order(operator.le),
    "erfc": _erfc,
    "nextafter": _nextafter,
    "square": lambda x: x * x,
    "polynomial": lambda x, *rising: _polynomial(x, rising[::-1]),
    "one_minus_square": lambda x: (1 - x) * (1 + x),
    "tan": lambda x: jnp.sin(x) / jnp.cos(x),
    "sinh": _sinh,
    "cosh": _cosh,
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": lambda x: 0.5 * (jnp.log1p(x) - jnp.log1p(-x)),
    "atan": _arctan,
    "atan2": _arctan2,
    "asin": lambda x: 2 * _arctan(x / (1 + jnp.sqrt((1 - x) * (1 + x)))),
    "acos": lambda x: 2 * _arctan(jnp.sqrt((1 - x) / (1 + x))),
    "cbrt": _cbrt,
    "population_count": _population_count,
    "clz": _clz,
}


_EXACT = ("nextafter", "square", "population_count", "clz")


@rule(*COMPOSITE)
def _composite(t, eqn, *operands):
    name, (dtype, _) = eqn.primitive.name, aval_of(eqn)
    if name in _EXACT or dtype not in _NARROW:
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
    return elementwise(t, "tanh", operands, *aval_of(eqn), "approx")


@rule("copy", "copy_p", "optimization_barrier", "multiple_of", "max_contiguous", "pvary", "pcast", "stop_gradient",
      "reshard", "with_memory_space_constraint", "layout_constraint", "sharding_constraint",
      "xla_metadata_value", "name")  # fmt: skip
def _identity(t, eqn, *operands):
    return list(operands)
