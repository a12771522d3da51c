"""Blocked matrix product with relu: each program of a 2 x 2 grid computes one block of z from a
band of rows of x and a band of columns of y."""

import numpy as np

import tilewright as tw


@tw.kernel
def matmul(x, y, z):
    z[...] = tw.relu(x[...] @ y[...])


call = tw.call(
    matmul,
    grid=(2, 2),
    in_specs=[
        tw.BlockSpec((512, 1024), lambda i, j: (i, 0)),
        tw.BlockSpec((1024, 512), lambda i, j: (0, j)),
    ],
    out_specs=tw.BlockSpec((512, 512), lambda i, j: (i, j)),
    out_shape=tw.ShapeDtype((1024, 1024), np.float32),
)

generator = np.random.default_rng(1)
x, y = generator.uniform(-1, 1, (2, 1024, 1024)).astype(np.float32)
error = np.abs(call(x, y) - np.maximum(x.astype(np.float64) @ y, 0)).max()
print(f"matmul: largest error {error:.3g}")
assert error < 1e-4
