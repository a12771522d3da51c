"""A matrix product of 8-bit floats: each row of x and each column of w has a scale that maps its
largest element to the format's largest, 448. The scales multiply the sum of a block once."""

import ml_dtypes
import numpy as np

import tilewright as tw

BLOCK = 128
E4M3 = ml_dtypes.float8_e4m3fn


@tw.kernel
def scaled_matmul(x, w, row_scales, column_scales, z):
    # w is stored transposed: the tensor cores read both operands along their rows.
    total = x[...] @ tw.transpose(w[...])
    rows, columns = tw.expand_dims(row_scales[...], 1), tw.expand_dims(column_scales[...], 0)
    z[...] = (total * rows * columns).astype(z.dtype)


def quantise(values):
    """Rows as e4m3, and the scales that undo the conversion."""
    scales = np.abs(values).max(1, keepdims=True) / 448
    return (values / scales).astype(E4M3), scales[:, 0].astype(np.float32)


rows, inner, columns = 300, 512, 200
generator = np.random.default_rng(1)
x, x_scales = quantise(generator.standard_normal((rows, inner)))
w, w_scales = quantise(generator.standard_normal((columns, inner)))

call = tw.call(
    scaled_matmul,
    grid=(tw.cdiv(rows, BLOCK), tw.cdiv(columns, BLOCK)),
    in_specs=[
        tw.BlockSpec((BLOCK, inner), lambda i, j: (i, 0)),
        tw.BlockSpec((BLOCK, inner), lambda i, j: (j, 0)),
        tw.BlockSpec(BLOCK, lambda i, j: i),
        tw.BlockSpec(BLOCK, lambda i, j: j),
    ],
    out_specs=tw.BlockSpec((BLOCK, BLOCK), lambda i, j: (i, j)),
    out_shape=tw.ShapeDtype((rows, columns), ml_dtypes.bfloat16),
)
z = call(x, w, x_scales, w_scales)
exact = (x.astype(float) * x_scales[:, None]) @ (w.astype(float) * w_scales[:, None]).T
error = np.abs(z.astype(float) - exact).max() / np.abs(exact).max()
print(f"scaled fp8 matmul: largest error {error:.3g} of the largest element")
assert error < 2**-8  # the rounding of bf16
