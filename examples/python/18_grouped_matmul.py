"""Grouped matrix products: the rows of x are sorted by expert, and each expert multiplies its rows
by its weights. Groups have any number of rows, including none: a table gives the expert, the first
row and the end of each tile of rows, and a mask keeps a group's last tile out of the next group."""

import ml_dtypes
import numpy as np

import tilewright as tw

BLOCK_M, BLOCK_N = 128, 256


@tw.kernel
def grouped_matmul(x, weights, expert, first, end, z):
    tile, column = tw.program_id(0), tw.program_id(1) * BLOCK_N
    row = first[tile]
    block = x[tw.ds(row, BLOCK_M), :] @ weights[expert[tile], :, tw.ds(column, BLOCK_N)]
    inside = tw.expand_dims(row + tw.arange(BLOCK_M) < end[tile], 1)
    tw.store(z, (tw.ds(row, BLOCK_M), tw.ds(column, BLOCK_N)), block.astype(z.dtype), mask=inside)


def tile_table(sizes):
    """For each tile of BLOCK_M rows: its expert, its first row, and where the expert's rows end."""
    ends = np.cumsum(sizes)
    rows = [
        (expert, row, end)
        for expert, (size, end) in enumerate(zip(sizes, ends, strict=True))
        for row in range(end - size, end, BLOCK_M)
    ]
    return np.array(rows, np.int32).T.copy()


sizes = [300, 0, 77, 500]
inner, columns = 256, 512
generator = np.random.default_rng(1)
x = generator.uniform(-1, 1, (sum(sizes), inner)).astype(ml_dtypes.bfloat16)
weights = generator.uniform(-1, 1, (len(sizes), inner, columns)).astype(ml_dtypes.bfloat16)
table = tile_table(sizes)

call = tw.call(
    grouped_matmul,
    grid=(table.shape[1], tw.cdiv(columns, BLOCK_N)),
    out_shape=tw.ShapeDtype((sum(sizes), columns), ml_dtypes.bfloat16),
)
z = call(x, weights, *table)
experts = np.repeat(np.arange(len(sizes)), sizes)
expected = np.einsum("mk,mkn->mn", x.astype(float), weights.astype(float)[experts])
error = np.abs(z.astype(float) - expected).max() / np.abs(expected).max()
print(f"grouped matmul: largest error {error:.3g} of the largest element")
assert error < 2**-8  # the rounding of bf16
