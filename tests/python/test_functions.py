"""Every function of the table of operations: outside of a trace, in mods, text and kernels."""

import math
import pathlib
import re

import numpy as np
import pytest

import tilewright as tw
from tilewright import _core
from tilewright._elementwise import UFUNCS
from tilewright._mods import as_mod

TABLE = {function.name: function for function in _core.elementwise_functions()}
X = np.linspace(0.25, 3, 12, dtype=np.float32)
Y = np.float32(0.75)

REFERENCE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "reference"


def operands(function):
    return (X, Y)[: function.operands]


def expected(function):
    return np.array([function.value(*map(float, (x, Y)[: function.operands])) for x in X])


@pytest.mark.parametrize("name", TABLE)
def test_functions_agree_with_their_definition(name):
    function = TABLE[name]
    want = expected(function)
    tolerance = 1e-6 * max(1.0, np.abs(want).max())
    if name == "nextafter":
        want = np.nextafter(X, Y)
        assert (tw.nextafter(X, Y) == want).all()
        tolerance = 0
    np.testing.assert_allclose(getattr(tw, name)(*operands(function)), want, atol=1e-6)

    @tw.kernel
    def kernel(x, z):
        z[:] = getattr(tw, name)(x[:], *operands(function)[1:])

    call = tw.call(kernel, out_shape=tw.ShapeDtype((12,), np.float32))
    np.testing.assert_allclose(call(X), want, rtol=0, atol=tolerance)

    rest = operands(function)[1:]
    text = tw.parse_mod(f"{name}(score{''.join(f', {y}' for y in rest)})")
    traced = as_mod("test", "score_mod", lambda s, *_: getattr(tw, name)(s, *rest), False)
    if function.op:
        assert all(f"= {function.op} %score" in mod.ir() for mod in (text, traced))


@pytest.mark.parametrize(
    "page, rows", [("attention.md", "functions"), ("language.md", "elementwise|activations")]
)
def test_pages_list_every_function(page, rows):
    text = (REFERENCE / page).read_text()
    listed = " ".join(re.findall(rf"^\| (?:{rows}) \| (.*) \|$", text, re.MULTILINE))
    assert not set(TABLE) - set(re.findall(r"\w+", listed))


def test_numpy_s_functions_are_known():
    def mod(s, b, h, q, kv):
        return np.cbrt(s) + np.nextafter(s, 2.0)

    ir = as_mod("test", "score_mod", mod, False).ir()
    assert "= cbrt %" in ir and "= nextafter %" in ir


def test_numpy_s_functions_are_those_of_the_table():
    for function in TABLE.values():
        if function.numpy:
            assert UFUNCS[getattr(np, function.numpy)] is getattr(tw, function.name)


def test_erfc_keeps_small_results():
    assert tw.erfc(9.0) == pytest.approx(math.erfc(9.0), rel=1e-15)
    x = np.array([9.0, 5.0, -1.0, 0.3], np.float32)

    @tw.kernel
    def kernel(x, z):
        z[:] = tw.erfc(x[:])

    got = tw.call(kernel, out_shape=tw.ShapeDtype((4,), np.float32))(x)
    np.testing.assert_allclose(got, [math.erfc(v) for v in x], rtol=6e-7)
