"""Derivatives inside of kernels against loops in f64: forms, dtypes, bad input."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw


def then(f, g):
    return f[0] * g[0], f[1] * g[0] + g[1]


def run(kernel, shapes, *inputs, **options):
    types = tuple(tw.ShapeDtype(*s) for s in shapes)
    return tw.call(kernel, out_shape=types, **options)(*inputs)


def gradients(a, b, dh, reverse=False):
    """Of h[t] = a[t] h[t - 1] + b[t] along the last axis, step by step."""
    a, b, dh = (x.astype(np.float64) for x in (a, b, dh))
    if reverse:
        return [np.flip(d, -1) for d in gradients(*(np.flip(x, -1) for x in (a, b, dh)))]
    states, state = [np.zeros(a.shape[:-1])], 0
    for t in range(a.shape[-1]):
        state = a[..., t] * state + b[..., t]
        states.append(state)
    da, db, later = np.empty_like(a), np.empty_like(b), 0
    for t in reversed(range(a.shape[-1])):
        db[..., t] = dh[..., t] + later
        da[..., t] = db[..., t] * states[t]
        later = db[..., t] * a[..., t]
    return da, db


@pytest.mark.parametrize(
    "dtype, tolerance",
    [(np.float64, 1e-12), (np.float32, 1e-5), (np.float16, 4e-3), (ml_dtypes.bfloat16, 4e-2)],
)
@pytest.mark.parametrize("n", [1, 2, 13, 64, 1000])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_linear_recurrences(dtype, tolerance, n, axis, reverse):
    rng = np.random.default_rng(n)
    a, b, dh = (rng.uniform(low, 1, (3, n)) for low in (0.5, 0.2, 0.2))
    arrays = [(x if axis else x.T).astype(dtype) for x in (a, b, dh)]
    wide = np.float64 if dtype == np.float64 else np.float32
    shape = arrays[0].shape

    def kernel(a, b, dh, da, db):
        def recurrence(a, b):
            return tw.associative_scan(then, (a, b), axis, reverse)[1]

        _, pullback = tw.vjp(recurrence, a[...], b[...])
        da[...], db[...] = pullback(dh[...])

    da, db = run(kernel, [(shape, wide), (shape, wide)], *arrays)
    want = gradients(*(x if axis else x.T for x in arrays), reverse)
    for ours, theirs in zip((da, db), want, strict=True):
        np.testing.assert_allclose(ours if axis else ours.T, theirs, tolerance, tolerance)


@dataclasses.dataclass
class Maps:
    scale: object
    shift: object


def test_forms_of_arguments_results_and_cotangents():
    rng = np.random.default_rng(0)
    x, y, d = rng.standard_normal((3, 4, 8), np.float32)

    def kernel(x, y, d, one, two, three):
        def function(maps, more):
            product = maps.scale * maps.shift * more["y"]
            return {"product": product, "rest": (maps.scale, tw.argmax(product, 1))}

        values, pullback = tw.vjp(function, Maps(x[...], y[...]), {"y": y[...]})
        assert values["rest"][1].shape == (4,)
        maps, more = pullback({"product": d[...], "rest": (None, None)})
        one[...], two[...] = maps.scale, maps.shift + more["y"]
        three[...] = pullback({"product": 1.0, "rest": (d[...], 0)})[0].scale

    one, two, three = run(kernel, [((4, 8), np.float32)] * 3, x, y, d)
    np.testing.assert_allclose(one, d * y * y, 1e-5)
    np.testing.assert_allclose(two, 2 * d * x * y, 1e-5)
    np.testing.assert_allclose(three, y * y + d, 1e-5)


def test_reductions_with_a_function():
    x = np.random.default_rng(0).uniform(0.5, 1.5, (5, 11))

    def kernel(x, dx):
        def norm(x):
            return tw.reduce(lambda a, b: tw.sqrt(a * a + b * b), x, axis=1)

        dx[...] = tw.vjp(norm, x[...])[1](1.0)[0]

    (dx,) = run(kernel, [(x.shape, np.float64)], x)
    np.testing.assert_allclose(dx, x / np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def test_second_derivatives():
    x = np.random.default_rng(0).uniform(0.5, 1.5, 9)

    def kernel(x, o):
        def product(x):
            return tw.associative_scan(lambda a, b: a * b, x)[8]

        def gradient(x):
            return tw.vjp(product, x)[1](1.0)[0]

        o[...] = tw.vjp(gradient, x[...])[1](1.0)[0]

    (ours,) = run(kernel, [((9,), np.float64)], x)
    # The sum over j of the derivative of prod(x) / x_j by x_i.
    inverse = 1 / x
    want = np.prod(x) * inverse * (inverse.sum() - inverse)
    np.testing.assert_allclose(ours, want, 1e-10)


def test_bad_input_is_named():
    def loop(t):
        return tw.for_loop(0, 3, lambda _, carry: carry * t, t)

    cases = {
        r"\[vjp\] expected a function but got int": lambda t: tw.vjp(3, t),
        r"\[vjp\] expected at least one primal but got none": lambda t: tw.vjp(lambda: t),
        r"\[vjp\] expected primals of float dtypes but value 1 is i32\[3\]": lambda t: tw.vjp(
            lambda a, _: a, t, tw.arange(3)
        ),
        r"\[vjp\] expected cotangents of the form tuple\(\*, \*\) but got \*": lambda t: tw.vjp(
            lambda a: (a, a), t
        )[1](t),
        r"of the form tuple\(\*, \*\) but got tuple\(\*, \*, \*\)": lambda t: tw.vjp(
            lambda a: (a, a), t
        )[1]((t, t, t)),
        r"of the form tuple\(\*, \*\) but got dict\(a: \*, b: \*\)": lambda t: tw.vjp(
            lambda a: (a, a), t
        )[1]({"a": t, "b": t}),
        r"of the form dict\(a: \*\) but got dict\(a: \*, b: \*\)": lambda t: tw.vjp(
            lambda a: {"a": a}, t
        )[1]({"a": t, "b": t}),
        r"\[vjp\] expected ops with a derivative but got sort": lambda t: tw.vjp(tw.sort, t)[1](1),
        r"\[vjp\] expected ops with a derivative but got for_loop.* \(at .*test_vjp.py": lambda t: (
            tw.vjp(loop, t)[1](1)
        ),
    }
    for message, function in cases.items():

        def kernel(x, o):
            function(x[...])  # noqa: B023
            o[...] = 0

        with pytest.raises((ValueError, TypeError), match=message):
            run(kernel, [((), np.float32)], np.zeros((3, 4), np.float32))
