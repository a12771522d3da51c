"""A grid: each of eight programs writes its own index. No inputs, scalar stores."""

import numpy as np

import tilewright as tw


@tw.kernel
def iota(z):
    i = tw.program_id(0)
    z[i] = i.to(np.int32)


call = tw.call(iota, grid=8, out_shape=tw.ShapeDtype((8,), np.int32))

z = call()
print(z)
assert np.array_equal(z, np.arange(8))
