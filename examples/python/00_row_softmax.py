"""The README's kernel: a softmax over rows, eight rows per program."""

import numpy as np

import tilewright as tw


@tw.kernel
def softmax(x, y):
    row = x[...]
    e = tw.exp(row - tw.max(row, 1, keepdims=True))
    y[...] = e / tw.sum(e, 1, keepdims=True)


rows = tw.BlockSpec((8, 4), lambda i: (i, 0))
call = tw.call(
    softmax, grid=2, in_specs=rows, out_specs=rows, out_shape=tw.ShapeDtype((16, 4), np.float32)
)

y = call(np.arange(64, dtype=np.float32).reshape(16, 4))
print(y[0])
assert abs(y[15, 3] - 0.6439) < 1e-4
