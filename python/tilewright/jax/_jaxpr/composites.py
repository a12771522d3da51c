"""Functions that the tile IR has no operation for, made of others in jnp: for both back ends."""

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
