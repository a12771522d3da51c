"""Sorting, indices and user-defined operators in kernels, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


def rand(dtype, *shape, seed=0):
    """Few different values, so that many are equal; floats include infinities, NaN and both
    zeros."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 25, shape)
    if np.issubdtype(dtype, np.unsignedinteger) or dtype == np.bool_:
        return (x if dtype != np.bool_ else x % 2).astype(dtype)
    x = x - 12
    if dtype in INTEGERS:
        return x.astype(dtype)
    x = x.astype(dtype)
    for value in (np.inf, -np.inf, np.nan, -0.0):
        x[rng.random(shape) < 0.05] = value
    return x


def run(kernel, shapes, *inputs, **options):
    types = tuple(tw.ShapeDtype(*s) for s in shapes)
    return tw.call(kernel, out_shape=types, **options)(*inputs)


def order(x, axis, descending=False):
    """The indices of a stable sort in which NaN is larger than every number."""
    x = x.astype(np.float64) if x.dtype not in INTEGERS else x
    if not descending:
        return np.argsort(x, axis, kind="stable")
    flipped = np.flip(x, axis)
    return x.shape[axis] - 1 - np.flip(np.argsort(flipped, axis, kind="stable"), axis)


def same(have, want):
    """Asserts equality; for bfloat16 NumPy does not treat NaNs as equal."""
    if have.dtype == ml_dtypes.bfloat16:
        have, want = have.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, np.bool_])
@pytest.mark.parametrize("interpret", [False, True])
def test_sorting_agrees_with_numpy(dtype, interpret):
    n = 21 if interpret else 131
    x = rand(dtype, 3, n)

    def kernel(x, up, down, columns, keys, values):
        up[...] = tw.argsort(x[...])
        down[...] = tw.sort(x[...], descending=True)
        columns[...] = tw.argsort(x[...], 0, descending=True)
        keys[...], values[...] = tw.sort_by_key(x[...], tw.iota((3, n), 1) * 3)

    i32 = np.int32
    up, down, columns, keys, values = run(
        kernel,
        [((3, n), i32), ((3, n), dtype), ((3, n), i32), ((3, n), dtype), ((3, n), i32)],
        x,
        interpret=interpret,
    )
    want = order(x, 1)
    np.testing.assert_array_equal(up, want)
    np.testing.assert_array_equal(columns, order(x, 0, True))
    np.testing.assert_array_equal(values, want * 3)
    same(keys, np.take_along_axis(x, want, 1))
    same(down, np.take_along_axis(x, order(x, 1, True), 1))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int16, np.uint32, np.int64])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_top_k(dtype, k):
    x = rand(dtype, 2, 3, 67)

    def kernel(x, values, places, middle):
        values[...], places[...] = tw.top_k(x[...], k)
        middle[...] = tw.top_k(x[...], 2, axis=1)[1]

    shapes = [((2, 3, k), dtype), ((2, 3, k), np.int32), ((2, 2, 67), np.int32)]
    values, places, middle = run(kernel, shapes, x)
    want = order(x, 2, True)[..., :k]
    np.testing.assert_array_equal(places, want)
    same(values, np.take_along_axis(x, want, 2))
    np.testing.assert_array_equal(middle, order(x, 1, True)[:, :2])


def test_numpys_functions_of_tiles():
    x = rand(np.int32, 4, 9)

    def kernel(x, o):
        o[...] = np.take_along_axis(x[...], np.argsort(x[...], 1), 1) - np.sort(x[...], 1)

    (z,) = run(kernel, [((4, 9), np.int32)], x)
    assert not z.any()


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64])
def test_take_along_axis_and_one_hot_read_places(dtype):
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    rows = np.array([[3, 0, 2, 1, 3]], dtype)
    columns = np.array([[4], [5], [0], [2]], dtype)

    def kernel(x, rows, columns, a, b, hot, front):
        a[...] = tw.take_along_axis(x[...], rows[...], 0)
        b[...] = tw.take_along_axis(x[...], columns[...])
        hot[...] = tw.one_hot(columns[...], 5)
        front[...] = tw.one_hot(rows[...], 3, np.int32, axis=0)

    shapes = [((1, 5), np.float32), ((4, 1), np.float32), ((4, 1, 5), np.float32)]
    a, b, hot, front = run(kernel, [*shapes, ((3, 1, 5), np.int32)], x, rows, columns)
    np.testing.assert_array_equal(a, np.take_along_axis(x, rows.astype(int), 0))
    np.testing.assert_array_equal(b, [[4], [0], [10], [17]])
    np.testing.assert_array_equal(hot, columns[..., None] == np.arange(5))
    np.testing.assert_array_equal(front, rows[None] == np.arange(3)[:, None, None])


@pytest.mark.parametrize("n", [1, 2, 13, 64, 100])
@pytest.mark.parametrize("axis", [0, 1])
def test_operators_see_their_order(n, axis):
    shape = (n, 3) if axis == 0 else (3, n)
    rng = np.random.default_rng(n)
    m, c = rng.integers(-3, 4, (2, *shape))

    def then(f, g):
        return {"m": f["m"] * g["m"], "c": f["c"] * g["m"] + g["c"]}

    def kernel(m, c, up, down, total):
        maps = {"m": m[...], "c": c[...]}
        up[...] = tw.associative_scan(then, maps, axis)["c"]
        down[...] = tw.associative_scan(then, maps, axis - 2, reverse=True)["c"]
        total[...] = tw.reduce(then, maps, axis, keepdims=True)["c"]

    one = (1, 3) if axis == 0 else (3, 1)
    up, down, total = run(kernel, [(shape, np.int64), (shape, np.int64), (one, np.int64)], m, c)

    def scanned(m, c):
        state, states = np.zeros(3, np.int64), []
        for a, b in zip(np.moveaxis(m, axis, 0), np.moveaxis(c, axis, 0), strict=True):
            state = state * a + b
            states.append(state)
        return np.moveaxis(np.stack(states), 0, axis)

    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(up, scanned(m, c))
        back = scanned(np.flip(m, axis), np.flip(c, axis))
    np.testing.assert_array_equal(down, np.flip(back, axis))
    np.testing.assert_array_equal(total, np.take(up, [n - 1], axis))


def test_scans_of_long_rows():
    n, piece = 1 << 18, 4096
    shape = tw.ShapeDtype((2, n), np.float32)
    row = tw.BlockSpec((1, n), lambda i: (i, 0))

    def whole(x, y):
        y[...] = tw.cumsum(x[...], 1)

    def pieces(x, y):
        def step(i, before):
            here = tw.ds(i * piece, piece)
            sums = tw.cumsum(x[:, here], 1) + before
            y[:, here] = sums
            return sums[:, -1:]

        tw.for_loop(0, n // piece, step, tw.zeros((1, 1)))

    whole, pieces = (
        tw.call(k, grid=2, in_specs=row, out_specs=row, out_shape=shape) for k in (whole, pieces)
    )
    # A GPU's block cannot hold a row of 1 MiB: the compiler cuts it in pieces, as `pieces` does by hand.
    for kernel, name in (whole, "whole"), (pieces, "pieces"):
        text = kernel.cuda("sm_90a", shape)
        assert name in text and "for (" in text
    x = np.random.default_rng(0).integers(-9, 9, (2, n)).astype(np.float32)
    np.testing.assert_array_equal(pieces(x), np.cumsum(x, 1))
    np.testing.assert_array_equal(whole(x), np.cumsum(x, 1))


def test_bad_input_is_named():
    x = np.zeros((3, 4), np.float32)
    cases = {
        r"\[associative_scan\] expected combine to take two values": lambda t: tw.associative_scan(
            lambda a: a, t
        ),
        r"\[reduce\] expected combine to return a value of the form \* but got tuple": lambda t: (
            tw.reduce(lambda a, b: (a, b), t)
        ),
        r"\[reduce\] expected an axis in \[-2, 2\) but got 5": lambda t: tw.reduce(
            tw.maximum, t, 5
        ),
        r"\[reduce\] expected axis to be an integer": lambda t: tw.reduce(tw.maximum, t, None),
        r"\[top_k\] expected k from 1 to 4 but got 5 \(at .*test_order": lambda t: tw.top_k(t, 5),
        r"\[sort\] expected axis to be an integer but got float": lambda t: tw.sort(t, 0.5),
        r"\[take_along_axis\] expected indices to be integers but got f32": lambda t: (
            tw.take_along_axis(t, t)
        ),
        r"\[one_hot\] expected indices to be integers but got f32": lambda t: tw.one_hot(t, 3),
        r"\[one_hot\] expected depth to be an integer": lambda t: tw.one_hot(tw.arange(3), "x"),
    }
    for message, function in cases.items():

        def kernel(x, o):
            function(x[...])  # noqa: B023
            o[...] = 0

        with pytest.raises((ValueError, TypeError), match=message):
            run(kernel, [((), np.float32)], x)
