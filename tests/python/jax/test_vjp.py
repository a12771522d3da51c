"""Kernels whose derivatives are kernels with `tw.vjp`, beside JAX's own derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilewright as tw
import tilewright.jax as twj


def then(f, g):
    return f[0] * g[0], f[1] * g[0] + g[1]


def matrices(f, g):
    """Products of matrices of 2 by 2."""
    return (
        f[0] * g[0] + f[1] * g[2],
        f[0] * g[1] + f[1] * g[3],
        f[2] * g[0] + f[3] * g[2],
        f[2] * g[1] + f[3] * g[3],
    )


def larger(f, g):
    keep = abs(f[0]) >= abs(g[0])
    where = jnp.where if isinstance(f[0], jax.Array) else tw.where
    return where(keep, f[0], g[0]), where(keep, f[1], g[1])


def scan_op(combine, count, shape, axis, reverse):
    """lax.associative_scan of `count` arrays as an op of ours, with its derivative."""
    types = (tw.ShapeDtype(shape, np.float32),) * count

    def scan(*tiles):
        return tw.associative_scan(combine, tiles, axis, reverse)

    def forward(*refs):
        for ref, value in zip(refs[count:], scan(*(r[...] for r in refs[:count])), strict=True):
            ref[...] = value

    def backward(*refs):
        _, pullback = tw.vjp(scan, *(r[...] for r in refs[:count]))
        gradients = pullback(tuple(r[...] for r in refs[count : 2 * count]))
        for ref, gradient in zip(refs[2 * count :], gradients, strict=True):
            ref[...] = gradient

    gradient = tw.call(backward, out_shape=types)
    return twj.op(
        tw.call(forward, out_shape=types),
        vjp=lambda inputs, outputs, cotangents: gradient(*inputs, *cotangents),
    )


@pytest.mark.parametrize("combine, count", [(then, 2), (matrices, 4), (larger, 2)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_are_those_of_associative_scan(combine, count, axis, reverse):
    shape = (17, 6) if axis == 0 else (6, 17)
    keys = jax.random.split(jax.random.key(0), 2 * count)
    inputs = [jax.random.normal(k, shape) / 2 for k in keys[:count]]
    weights = [jax.random.normal(k, shape) for k in keys[count:]]

    def loss(scan):
        def of(*xs):
            return sum((w * jnp.sin(y)).sum() for w, y in zip(weights, scan(*xs), strict=True))

        return jax.jit(jax.grad(of, tuple(range(count))))

    op = scan_op(combine, count, shape, axis, reverse)
    ours = loss(op)(*inputs)
    theirs = loss(lambda *xs: jax.lax.associative_scan(combine, xs, reverse, axis))(*inputs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, 2e-5, 2e-5)


def test_gradients_of_a_batch():
    op = scan_op(then, 2, (3, 9), 1, False)
    a, b = jax.random.uniform(jax.random.key(0), (2, 4, 3, 9))
    batched = jax.grad(lambda a, b: jax.vmap(op)(a, b)[1].sum(), (0, 1))(a, b)
    for i in range(4):
        alone = jax.grad(lambda a, b: op(a, b)[1].sum(), (0, 1))(a[i], b[i])
        np.testing.assert_array_equal(batched[0][i], alone[0])
        np.testing.assert_array_equal(batched[1][i], alone[1])
