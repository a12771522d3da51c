"""A matrix product whose activation is passed as a function and fused into the kernel."""

import math

import numpy as np

import tilewright as tw


@tw.kernel
def fused_matmul(x, y, z, *, activation):
    z[...] = activation(x[...] @ y[...])


def make(n, activation):
    """activation(x @ y) for square matrices of n, in blocks of 64."""
    return tw.call(
        fused_matmul,
        grid=(n // 64, n // 64),
        in_specs=[
            tw.BlockSpec((64, n), lambda i, j: (i, 0)),
            tw.BlockSpec((n, 64), lambda i, j: (0, j)),
        ],
        out_specs=tw.BlockSpec((64, 64), lambda i, j: (i, j)),
        out_shape=tw.ShapeDtype((n, n), np.float32),
        activation=activation,
    )


x, y = np.random.default_rng(1).uniform(-1, 1, (2, 128, 128)).astype(np.float32)
product = x.astype(np.float64) @ y

with_gelu = make(128, lambda t: tw.gelu(t, approximate=False))
with_cap = make(128, lambda t: 2.0 * tw.tanh(t / 2.0))

erf = np.vectorize(math.erf)
for name, call, expected in [
    ("gelu(x @ y)", with_gelu, 0.5 * product * (1 + erf(product / math.sqrt(2)))),
    ("2 tanh(x @ y / 2)", with_cap, 2 * np.tanh(product / 2)),
]:
    error = np.abs(call(x, y) - expected).max()
    print(f"{name}: largest error {error:.3g}")
    assert error < 1e-4
