"""NumPy's functions that have no operation of their own, composed of others."""

import math

import numpy as np

from ._elementwise import FUNCTIONS as F
from ._elementwise import UFUNCS


def _trunc(x):
    return F["where"](x < 0, F["ceil"](x), F["floor"](x))


def _fmod(x, y):
    rest = F["abs"](x) % F["abs"](y)
    return F["where"](x < 0, -rest, rest)


def _sinh(x):
    return (F["expm1"](x) - F["expm1"](-x)) * 0.5


def _cosh(x):
    return F["exp"](x) * 0.5 + F["exp"](-x) * 0.5


def _logaddexp(x, y):
    larger = F["maximum"](x, y)
    gap = F["where"](x == y, 0.0, F["abs"](x - y))  # 0 for equal infinities too
    return larger + F["log1p"](F["exp"](-gap))


def _hypot(x, y):
    x, y = F["abs"](x), F["abs"](y)
    larger, smaller = F["maximum"](x, y), F["minimum"](x, y)
    ratio = F["where"](larger == smaller, 1.0, smaller / larger)  # for two zeros
    is_infinite = (x == math.inf) | (y == math.inf)
    return F["where"](is_infinite, math.inf, larger * F["sqrt"](ratio * ratio + 1))


def _fmax(x, y):
    return F["where"](F["isnan"](x), y, F["where"](F["isnan"](y), x, F["maximum"](x, y)))


def _fmin(x, y):
    return F["where"](F["isnan"](x), y, F["where"](F["isnan"](y), x, F["minimum"](x, y)))


def _with_sign_of(x, size):
    return F["where"](x < 0, -size, size)


def _arctan(x):
    """Cephes' range reduction to |x| <= tan(pi / 8), and its rational function."""
    where, size = F["where"], F["abs"](x)
    big, middle = size > 2.414213562373095, size > 0.4142135623730950
    reduced = where(big, -1 / size, where(middle, (size - 1) / (size + 1), size))
    start = where(big, math.pi / 2, where(middle, math.pi / 4, 0.0 * size))
    z = reduced * reduced
    above = -8.750608600031904122785e-1
    for c in (-16.15753718733365076637, -75.00855792314704667340, -122.8866684490136173410):
        above = above * z + c
    above = above * z - 64.85021904942025371773
    below = z + 24.85846490142306297962
    for c in (165.0270098316988542046, 432.8810604912902668951, 485.3903996359136964868):
        below = below * z + c
    below = below * z + 194.5506571482613964425
    return _with_sign_of(x, start + (reduced + reduced * z * (above / below)))


def _arctan2(y, x):
    where = F["where"]
    angle = _arctan(F["abs"](y) / F["abs"](x))
    angle = where((x == 0) & (y == 0), 0.0, angle)
    angle = where((F["abs"](x) == math.inf) & (F["abs"](y) == math.inf), math.pi / 4, angle)
    angle = where((x < 0) | ((x == 0) & (1 / x < 0)), math.pi - angle, angle)
    return where((y < 0) | ((y == 0) & (1 / y < 0)), -angle, angle)


def _arcsinh(x):
    size = F["abs"](x)
    square = size * size
    small = F["log1p"](size + square / (1 + F["sqrt"](square + 1)))
    large = F["log"](size) + math.log(2)
    return _with_sign_of(x, F["where"](size > 1e9, large, small))


def _arccosh(x):
    near = F["log1p"]((x - 1) + F["sqrt"]((x - 1) * (x + 1)))
    return F["where"](x > 1e9, F["log"](x) + math.log(2), near)


UFUNCS.update(
    {
        np.isfinite: lambda x: F["abs"](x) < math.inf,
        np.isinf: lambda x: F["abs"](x) == math.inf,
        np.trunc: _trunc,
        np.fabs: F["abs"],
        np.fmod: _fmod,
        np.fmax: _fmax,
        np.fmin: _fmin,
        np.log10: lambda x: F["log"](x) * (1 / math.log(10)),
        np.tan: lambda x: F["sin"](x) / F["cos"](x),
        np.sinh: _sinh,
        np.cosh: _cosh,
        np.arctan: _arctan,
        np.arctan2: _arctan2,
        np.arcsin: lambda x: 2 * _arctan(x / (1 + F["sqrt"]((1 - x) * (1 + x)))),
        np.arccos: lambda x: 2 * _arctan(F["sqrt"]((1 - x) / (1 + x))),
        np.arcsinh: _arcsinh,
        np.arccosh: _arccosh,
        np.arctanh: lambda x: 0.5 * (F["log1p"](x) - F["log1p"](-x)),
        np.hypot: _hypot,
        np.logaddexp: _logaddexp,
        np.deg2rad: lambda x: x * (math.pi / 180),
        np.rad2deg: lambda x: x * (180 / math.pi),
    }
)
