"""Prefix sum in two calls: the sum of each block, then each program scans its block and adds the
sums of all blocks before it."""

import numpy as np

import tilewright as tw

SIZE, BLOCK = 5000, 512
BLOCKS = tw.cdiv(SIZE, BLOCK)

block = tw.BlockSpec(BLOCK, lambda i: i)
one = tw.BlockSpec((None,), lambda i: i)


@tw.kernel
def block_sums(x, sums):
    sums[...] = tw.sum(x[...])


@tw.kernel
def scan_blocks(x, sums, z):
    before = tw.arange(BLOCKS) < tw.program_id(0)
    offset = tw.sum(tw.load(sums, mask=before))
    z[...] = tw.cumsum(x[...]) + offset


sums_of = tw.call(
    block_sums,
    grid=BLOCKS,
    in_specs=block,
    out_specs=one,
    out_shape=tw.ShapeDtype((BLOCKS,), np.int32),
)
scan = tw.call(
    scan_blocks,
    grid=BLOCKS,
    in_specs=block,
    out_specs=block,
    out_shape=tw.ShapeDtype((SIZE,), np.int32),
)

x = (np.arange(SIZE) * 7919 % 101 - 50).astype(np.int32)
z = scan(x, sums_of(x))
print(z[-5:])
assert np.array_equal(z, np.cumsum(x))
