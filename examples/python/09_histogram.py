"""Histogram with atomics: every program counts its block into one shared array, which is an input
of zeros that an alias updates in place."""

import numpy as np

import tilewright as tw

VALUES, BINS, BLOCK = 10000, 16, 256


@tw.kernel
def histogram(x, start, counts):
    position = tw.program_id(0) * BLOCK + tw.arange(BLOCK)
    bins = tw.floor((x[...] + 1.0) * (BINS / 2.0)).to(np.int32)
    tw.atomic_add(counts, bins, 1, mask=position < VALUES)


call = tw.call(
    histogram,
    grid=tw.cdiv(VALUES, BLOCK),
    in_specs=tw.BlockSpec(BLOCK, lambda i: i),
    out_shape=tw.ShapeDtype((BINS,), np.int32),
    aliases={1: 0},
)

x = np.random.default_rng(5).uniform(-1, 1, VALUES).astype(np.float32)
counts = call(x, np.zeros(BINS, np.int32))
print(counts)
expected = np.floor((x + np.float32(1)) * np.float32(BINS / 2)).astype(int)
assert np.array_equal(counts, np.bincount(expected, minlength=BINS))
