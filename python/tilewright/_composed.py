"""NumPy's functions that have no operation of their own: what they are composed of."""

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
    gap = F["where"](x == y, 0.0, F["abs"](x - y))  # of equal infinities too
    return larger + F["log1p"](F["exp"](-gap))


def _hypot(x, y):
    x, y = F["abs"](x), F["abs"](y)
    larger, smaller = F["maximum"](x, y), F["minimum"](x, y)
    ratio = F["where"](larger == smaller, 1.0, smaller / larger)  # of two zeros
    is_infinite = (x == math.inf) | (y == math.inf)
    return F["where"](is_infinite, math.inf, larger * F["sqrt"](ratio * ratio + 1))


def _fmax(x, y):
    return F["where"](F["isnan"](x), y, F["where"](F["isnan"](y), x, F["maximum"](x, y)))


def _fmin(x, y):
    return F["where"](F["isnan"](x), y, F["where"](F["isnan"](y), x, F["minimum"](x, y)))


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
        np.hypot: _hypot,
        np.logaddexp: _logaddexp,
        np.deg2rad: lambda x: x * (math.pi / 180),
        np.rad2deg: lambda x: x * (180 / math.pi),
    }
)
