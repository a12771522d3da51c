"""A matrix product with 4-bit weights: two per byte, and a scale for every 64 rows of a column. The
kernel converts them to bf16, so that memory holds and moves a quarter of the bytes."""

import ml_dtypes
import numpy as np

import tilewright as tw

BLOCK, GROUP = 64, 64


@tw.kernel
def int4_matmul(x, packed, scales, z):
    row, column = tw.program_id(0) * BLOCK, tw.program_id(1) * BLOCK

    def add_group(group, total):
        # Byte (i, j) holds rows 2 i and 2 i + 1 of column j, the even one in the low bits.
        pairs = packed[tw.ds(group * (GROUP // 2), GROUP // 2), tw.ds(column, BLOCK)]
        pairs = pairs.astype(np.int32)
        low, high = (pairs & 15) - 8, (pairs >> 4) - 8
        values = tw.reshape(tw.stack([low, high], axis=1), (GROUP, BLOCK))
        scale = tw.expand_dims(scales[group, tw.ds(column, BLOCK)], 0)
        w = (values.astype(np.float32) * scale).astype(x.dtype)
        return tw.dot(x[tw.ds(row, BLOCK), tw.ds(group * GROUP, GROUP)], w, acc=total)

    zeros = tw.zeros((BLOCK, BLOCK))
    total = tw.for_loop(0, scales.extent(0), add_group, zeros)
    z[tw.ds(row, BLOCK), tw.ds(column, BLOCK)] = total


rows, inner, columns = 100, 256, 192
generator = np.random.default_rng(1)
x = generator.uniform(-1, 1, (rows, inner)).astype(ml_dtypes.bfloat16)
values = generator.integers(-8, 8, (inner, columns))
scales = generator.uniform(0.5, 1, (inner // GROUP, columns)).astype(np.float32)
packed = ((values[0::2] + 8) | (values[1::2] + 8) << 4).astype(np.uint8)

call = tw.call(
    int4_matmul,
    grid=(tw.cdiv(rows, BLOCK), tw.cdiv(columns, BLOCK)),
    out_shape=tw.ShapeDtype((rows, columns), np.float32),
)
z = call(x, packed, scales)
weights = values * np.repeat(scales.astype(float), GROUP, 0)
expected = x.astype(float) @ weights.astype(ml_dtypes.bfloat16).astype(float)
error = np.abs(z - expected).max()
print(f"int4 matmul: largest error {error:.3g}")
assert error < 1e-3
