"""Functions without an operation in the tile IR, composed of others in jnp for both back ends."""

import operator

import jax.numpy as jnp
from jax import lax


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


def _in_total_order(compare):
    """A comparison for sorts and searches: NaN comes after every number."""

    def compared(a, b):
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return compare(a, b)
        last = b != b if compare is operator.le else (a == a) & (b != b)
        return compare(a, b) | last

    return compared


#: Primitives without an operation in the tile IR, in jnp.
COMPOSITE = {
    "lt_to": _in_total_order(operator.lt),
    "le_to": _in_total_order(operator.le),
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
    "population_count": _population_count,
    "clz": _clz,
}
