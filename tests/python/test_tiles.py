"""Functions on tiles: NumPy's functions give NumPy's values."""

import enum

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

F32 = np.float32


def rand(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


def run(kernel, out, *inputs, **options):
    """Runs with outputs of these (shape, dtype)s; returns one result if `out` is not a list."""
    single = not isinstance(out, list)
    shapes = [tw.ShapeDtype(*o) for o in ([out] if single else out)]
    return tw.call(kernel, out_shape=shapes[0] if single else tuple(shapes), **options)(*inputs)


FUNCTIONS = {
    "operators": lambda x, y, m: -x + y * 2 - x / (y * y + 1) + x // (y * y + 1) + abs(y) % 1.5,
    "comparisons": lambda x, y, m: m.where((x < y) | (x >= 1) & (y != 0) ^ (x == y), x, y),
    "ufuncs": lambda x, y, m: np.exp(x) + np.maximum(x, y) * np.tanh(y) - np.sqrt(np.abs(x)),
    "logical": lambda x, y, m: m.where(np.logical_and(x > 0, np.logical_not(y > 0)), 1.0, x),
    "sum": lambda x, y, m: x + np.sum(y, axis=1, keepdims=True),
    "reductions": lambda x, y, m: x * np.max(y) + np.min(x, axis=0) - np.mean(y, axis=(0, 1)),
    "methods": lambda x, y, m: x - x.max(axis=1, keepdims=True) + y.sum(0) + y.mean(),
    "cumsum": lambda x, y, m: np.cumsum(x, axis=1) + np.cumprod(y, axis=0),
    "transpose": lambda x, y, m: x.T.reshape(x.shape) + np.transpose(y).reshape((4, 6)),
    "indices": lambda x, y, m: x[:, 1:2] + y[-1] + x[..., None][:, ::6, 0] + y[2, 3],
    "concatenate": lambda x, y, m: np.concatenate([x[:2], y[2:]], 0) + np.stack([x[0]] * 4),
    "matmul": lambda x, y, m: (x @ y.T) @ y + m.dot(x, np.transpose(y)) @ x,
    "clip": lambda x, y, m: np.clip(x, -0.5, 0.5) + np.square(y) + np.power(abs(x) + 1, 2.5),
    "where": lambda x, y, m: np.where(x > 0, x, 0) + np.broadcast_to(y[0], (4, 6)),
}


@pytest.mark.parametrize("interpret", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_agree_with_numpy(name, interpret):
    function = FUNCTIONS[name]
    x, y = rand(4, 6), rand(4, 6, seed=1)

    def kernel(x, y, o):
        o[...] = function(x[...], y[...], tw)

    z = run(kernel, ((4, 6), F32), x, y, interpret=interpret)
    np.testing.assert_allclose(z, function(x, y, np), rtol=2e-5, atol=2e-5)


COMPOSED_OF_ONE = """isfinite isinf trunc fabs log10 tan sinh cosh deg2rad rad2deg arctan arcsin
    arccos arcsinh arccosh arctanh""".split()
COMPOSED_OF_TWO = "fmod fmax fmin hypot logaddexp arctan2".split()
SPECIAL = np.array([0, -0.0, 1e-6, 0.3, -0.9, 1, -3.7, 2.5, 30, 1e12, np.inf, -np.inf, np.nan], F32)


@pytest.mark.parametrize("name", COMPOSED_OF_ONE + COMPOSED_OF_TWO)
def test_composed_ufuncs_agree_with_numpy(name):
    function = getattr(np, name)
    x, y = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))
    if name == "fmod":
        x = x[np.isfinite(x)]
        y = np.where(np.arange(x.size) % 2, F32(1.5), F32(-0.7))

    def of_one(x, o):
        o[...] = function(x[...]).to(F32)

    def of_two(x, y, o):
        o[...] = function(x[...], y[...]).to(F32)

    arrays, kernel = ((x, y), of_two) if name in COMPOSED_OF_TWO else ((x,), of_one)
    with np.errstate(all="ignore"):
        want = function(*arrays).astype(F32)
    have = run(kernel, (x.shape, F32), *arrays)
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-30)


def test_array_functions_agree_with_numpy():
    x = rand(4, 6)

    def functions(x):
        return (
            np.var(x, axis=1) + np.std(x, 1) + np.amax(x, axis=1) - np.amin(x, axis=1),
            np.swapaxes(x, 0, -1)
            + np.ravel(x)[:4]
            + np.outer(np.ravel(x)[:6], np.ones_like(x[:, 0])),
            np.full_like(x, 2.5) + np.zeros_like(x),
        )

    def kernel(x, a, b, c):
        a[...], b[...], c[...] = functions(x[...])

    have = run(kernel, [((4,), F32), ((6, 4), F32), ((4, 6), F32)], x)
    for one, want in zip(have, functions(x), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-6)


def test_integer_functions():
    x, y = np.arange(-6, 6, dtype=np.int32), np.arange(1, 13, dtype=np.int32)

    def kernel(x, y, divided, other):
        x, y = x[...], y[...]
        divided[...] = x / y
        other[...] = (x // y) * 100 + x % y + (x << 2) - (y >> 1) + ((x & y) | (x ^ 3)) + ~x

    divided, other = run(kernel, [((12,), F32), ((12,), np.int32)], x, y)
    np.testing.assert_allclose(divided, x / y, rtol=1e-6)
    np.testing.assert_array_equal(
        other, (x // y) * 100 + x % y + (x << 2) - (y >> 1) + ((x & y) | (x ^ 3)) + ~x
    )


def test_arg_reductions_and_reversed_scans():
    x = rand(5, 7)

    def kernel(x, first, high, low, sums):
        first[...] = np.argmax(x[...])
        high[...] = np.argmax(x[...], axis=1)
        low[...] = tw.argmin(x[...], 0)
        sums[...] = tw.cumsum(x[...], 1, reverse=True) + tw.cummax(x[...], 0) - tw.cummin(x[...])

    shapes = [((), np.int32), ((5,), np.int32), ((7,), np.int32), ((5, 7), F32)]
    first, high, low, sums = run(kernel, shapes, x)
    assert first == x.argmax()
    np.testing.assert_array_equal(high, x.argmax(1))
    np.testing.assert_array_equal(low, x.argmin(0))
    expected = np.cumsum(x[:, ::-1], 1)[:, ::-1]
    expected = expected + np.maximum.accumulate(x, 0) - np.minimum.accumulate(x, 0)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)


class Algorithm(enum.Enum):
    """Like jax.lax.DotAlgorithmPreset."""

    TF32_TF32_F32_X3 = 1


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, ""),
        ("highest", ""),
        ("DEFAULT", ""),
        ("tf32", " precision tf32"),
        ("high", " precision tf32x3"),
        (Algorithm.TF32_TF32_F32_X3, " precision tf32x3"),
    ],
)
def test_precisions_have_the_names_of_jax(given, meant):
    def kernel(x, o):
        o[...] = tw.dot(x[...], x[...], precision=given)

    f = tw.call(kernel, out_shape=tw.ShapeDtype((16, 16), F32))
    text = f.ir(tw.ShapeDtype((16, 16), F32))
    (dot,) = (line for line in text.splitlines() if " dot " in line)
    assert (f"{meant} :" in dot) and ("precision" in dot) == bool(meant), dot


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("interpret", [False, True])
def test_cumulative_logsumexp(dtype, interpret):
    x = (rand(5, 137) * 40).astype(dtype)
    x[0] = -np.inf
    x[1, :20] = -np.inf
    x[2, 50] = np.inf
    x[3, 70] = np.nan

    def kernel(x, along, down, back):
        along[...] = tw.cumlogsumexp(x[...], 1)
        down[...] = tw.cumlogsumexp(x[...])
        back[...] = tw.cumlogsumexp(x[...], -1, reverse=True)

    results = run(kernel, [((5, 137), dtype)] * 3, x, interpret=interpret)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        expected = [
            np.logaddexp.accumulate(wide, 1),
            np.logaddexp.accumulate(wide, 0),
            np.logaddexp.accumulate(wide[:, ::-1], 1)[:, ::-1],
        ]
    rtol = {2: 8e-3, 4: 1e-6, 8: 1e-14}[np.dtype(dtype).itemsize]
    for result, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(result.astype(np.float64), want, rtol=rtol, atol=rtol)


def test_dots_of_narrow_floats_are_f32():
    x = rand(16, 8).astype(ml_dtypes.bfloat16)

    def kernel(x, o):
        product = tw.dot(x[...], x[...], trans_b=True)
        assert product.dtype == F32 and product.shape == (16, 16)
        o[...] = product

    z = run(kernel, ((16, 16), F32), x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(z, wide @ wide.T, rtol=1e-5, atol=1e-5)


def test_random_numbers_are_the_same_whatever_the_blocks():
    def kernel(o):
        i = tw.program_id(0)
        o[...] = tw.uniform(7, i * o.shape[0] + tw.arange(o.shape[0]))

    def make(block):
        return tw.call(
            kernel,
            grid=64 // block,
            out_specs=tw.BlockSpec(block, lambda i: i),
            out_shape=tw.ShapeDtype((64,), F32),
        )()

    z = make(64)
    np.testing.assert_array_equal(z, make(16))
    assert len(set(z)) == 64 and z.min() >= 0 and z.max() < 1 and 0.3 < z.mean() < 0.7
