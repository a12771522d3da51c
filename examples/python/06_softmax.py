"""Softmax over the rows of a matrix whose row length is not a multiple of the block: lanes past the
end of a row read `other`."""

import numpy as np

import tilewright as tw

ROWS, COLUMNS, BLOCK_ROWS, PADDED = 100, 781, 8, 1024


@tw.kernel
def softmax(x, z):
    row = tw.load(x, other=-np.inf)
    exponentials = tw.exp(row - tw.max(row, 1, keepdims=True))
    z[...] = exponentials / tw.sum(exponentials, 1, keepdims=True)


rows = tw.BlockSpec((BLOCK_ROWS, PADDED), lambda i: (i, 0))
call = tw.call(
    softmax,
    grid=tw.cdiv(ROWS, BLOCK_ROWS),
    in_specs=rows,
    out_specs=rows,
    out_shape=tw.ShapeDtype((ROWS, COLUMNS), np.float32),
)

x = np.random.default_rng(3).uniform(-1, 1, (ROWS, COLUMNS)).astype(np.float32)
expected = np.exp(x.astype(np.float64))
expected /= expected.sum(1, keepdims=True)
error = np.abs(call(x) - expected).max()
print(f"softmax: largest error {error:.3g}")
assert error < 1e-7
