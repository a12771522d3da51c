"""vmap: a matrix product over a batch, and over a batch of x with one shared y."""

import numpy as np

import tilewright as tw

BATCH, SIZE = 4, 64


@tw.kernel
def matmul(x, y, z):
    z[...] = x[...] @ y[...]


call = tw.call(
    matmul,
    grid=(2, 2),
    in_specs=[
        tw.BlockSpec((32, SIZE), lambda i, j: (i, 0)),
        tw.BlockSpec((SIZE, 32), lambda i, j: (0, j)),
    ],
    out_specs=tw.BlockSpec((32, 32), lambda i, j: (i, j)),
    out_shape=tw.ShapeDtype((SIZE, SIZE), np.float32),
)

x, y = np.random.default_rng(1).uniform(-1, 1, (2, BATCH, SIZE, SIZE)).astype(np.float32)
batched = tw.vmap(call)(x, y)
shared = tw.vmap(call, in_axes=(0, None))(x, y[0])

for name, result, expected in [("x and y", batched, x @ y), ("x", shared, x @ y[0])]:
    error = np.abs(result - expected).max()
    print(f"vmap over {name}: largest error {error:.3g}")
    assert error < 1e-4
