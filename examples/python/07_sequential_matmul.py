"""A sequential grid axis: the steps of axis 2 run in order inside one program and accumulate in
scratch; the last step writes the output block."""

import numpy as np

import tilewright as tw

SIZE, BLOCK = 192, 64
BLOCKS = SIZE // BLOCK


@tw.kernel
def matmul(x, y, z, accumulator):
    step = tw.program_id(2)

    @tw.when(step == 0)
    def _():
        accumulator[...] = 0

    accumulator[...] = tw.dot(x[...], y[...], acc=accumulator[...])

    @tw.when(step == tw.num_programs(2) - 1)
    def _():
        z[...] = accumulator[...]


call = tw.call(
    matmul,
    grid=(BLOCKS, BLOCKS, BLOCKS),
    in_specs=[
        tw.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (i, k)),
        tw.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (k, j)),
    ],
    out_specs=tw.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (i, j)),
    out_shape=tw.ShapeDtype((SIZE, SIZE), np.float32),
    scratch=[tw.ShapeDtype((BLOCK, BLOCK), np.float32)],
    sequential=2,
)

x, y = np.random.default_rng(1).uniform(-1, 1, (2, SIZE, SIZE)).astype(np.float32)
error = np.abs(call(x, y) - x.astype(np.float64) @ y).max()
print(f"sequential matmul: largest error {error:.3g}")
assert error < 1e-4
