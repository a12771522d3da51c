"""The norms against float64 NumPy, forward and backward."""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]


def close(have, want, dtype):
    """Asserts equality within eight units in the last place of the largest value, as in C++."""
    error = np.abs(np.asarray(have, np.float64) - want).max(initial=0)
    unit = float(ml_dtypes.finfo(dtype).eps)
    assert error <= 8 * unit * max(1.0, np.abs(want).max(initial=0))


def reference(layer, x, weight, bias, eps):
    mean = x.mean(-1, keepdims=True) if layer else 0.0
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    return (x - mean) * inverse * weight + bias, mean, inverse


def gradients(layer, x, weight, dy, eps):
    _, mean, inverse = reference(layer, x, weight, 0, eps)
    hat = (x - mean) * inverse
    scaled = dy * weight
    inner = scaled - hat * (scaled * hat).mean(-1, keepdims=True)
    if layer:
        inner = inner - scaled.mean(-1, keepdims=True)
    return inner * inverse, (dy * hat).sum(0), dy.sum(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (33, 256)])
def test_values_and_gradients(layer, dtype, shape):
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    weight, bias = (rng.standard_normal(shape[1]).astype(dtype) for _ in range(2))
    wide = [a.astype(np.float64) for a in (x, weight, bias, dy)]
    if layer:
        y, pullback = tw.layer_norm_vjp(x, weight, bias, eps=1e-3)
    else:
        y, pullback = tw.rms_norm_vjp(x, weight, eps=1e-3)
    want, _, _ = reference(layer, wide[0], wide[1], wide[2] if layer else 0, 1e-3)
    assert y.dtype == dtype
    close(y, want, dtype)
    have = pullback(dy)
    dx, dweight, dbias = gradients(layer, wide[0], wide[1], wide[3], 1e-3)
    close(have.x, dx, dtype)
    close(have.weight, dweight, dtype)
    if layer:
        close(have.bias, dbias, dtype)
    else:
        assert have.bias is None
    assert have.residual is None


def test_residual_and_statistics():
    rng = np.random.default_rng(1)
    x, residual = rng.standard_normal((2, 4, 6))
    y, total, inverse = tw.rms_norm(x, residual=residual, return_stats=True)
    np.testing.assert_array_equal(total, x + residual)
    want, _, deviation = reference(False, x + residual, 1.0, 0.0, 1e-5)
    np.testing.assert_allclose(y, want, rtol=1e-12)
    np.testing.assert_allclose(inverse, deviation[:, 0], rtol=1e-12)
    y, mean, inverse = tw.layer_norm(x, return_stats=True)
    np.testing.assert_allclose(mean, x.mean(-1), atol=1e-12)
    _, pullback = tw.rms_norm_vjp(x, residual=residual)
    dsum = rng.standard_normal(x.shape)
    plain, added = pullback(np.ones_like(x)), pullback(np.ones_like(x), dsum)
    np.testing.assert_allclose(added.residual, plain.x + dsum, rtol=1e-12)


def test_strided_input_and_several_weight_dimensions():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((6, 8, 4))[::2].transpose(0, 2, 1)
    weight = rng.standard_normal((4, 8))
    y = tw.rms_norm(x, weight)
    flat, _, _ = reference(False, x.reshape(3, 32), weight.reshape(32), 0.0, 1e-5)
    np.testing.assert_allclose(y.reshape(3, 32), flat, rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x": np.zeros((2, 3)), "weight": np.zeros(4)}, "shape ends that of x"),
        ({"x": np.zeros((2, 3), np.int32)}, "expected x of f32"),
        ({"x": np.zeros((2, 3)), "residual": np.zeros((2, 4))}, "expected residual"),
        ({"x": None}, "expected x"),
        ({"x": np.zeros((2, 3)), "eps": -1.0}, "expected eps"),
    ],
)
def test_bad_input_is_named(arguments, text):
    with pytest.raises(ValueError, match=text):
        tw.rms_norm(**arguments)
