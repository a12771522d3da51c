"""Hello: adds two vectors in one program that sees the whole arrays."""

import numpy as np

import tilewright as tw


@tw.kernel
def add_vectors(x, y, z):
    z[...] = x[...] + y[...]


call = tw.call(add_vectors, out_shape=tw.ShapeDtype((8,), np.float32))

x = np.arange(8, dtype=np.float32)
z = call(x, x)
print(z)
assert np.array_equal(z, 2 * x)
