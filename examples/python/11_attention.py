"""Fused attention in the form of JAX's Pallas `attention` module: a running maximum and sum over
blocks of keys, so that no row of scores is ever stored."""

import numpy as np
import pallas_attention as pallas

BATCH, LENGTH, HEADS, DIM = 2, 75, 2, 16  # 75 = 2 x 32 + 11
q, k, v = np.random.default_rng(1).uniform(-1, 1, (3, BATCH, LENGTH, HEADS, DIM)).astype(np.float32)


def run(name, segment_ids, **options):
    out, _ = pallas.forward(q, k, v, segment_ids, **options)
    options.pop("interpret", None)
    error = np.abs(out - pallas.dense(q, k, v, segment_ids, **options)[0]).max()
    print(f"{name}: largest error {error:.3g}")
    assert error < 1e-6


run("attention", None, block_q=32, block_k=16)
run("causal", None, causal=True, block_q=32, block_k=16)
run("blocks longer than the sequence", None, sm_scale=0.25, causal=True)
run("segments", pallas.segments(BATCH, LENGTH), causal=True, block_q=16, block_k=32)

# The same arrays stored as (batch, heads, sequence, dim), with gaps between the rows: views.
out, _ = pallas.forward(q, k, v, causal=True, block_q=32)
wide = np.zeros((3, BATCH, HEADS, LENGTH, DIM + 3), np.float32)[..., :DIM].swapaxes(2, 3)
wide[:] = q, k, v
strided, _ = pallas.forward(*wide, causal=True, block_q=32)
print(
    "strided (batch, heads, sequence, dim):", "equal" if np.array_equal(out, strided) else "WRONG"
)
assert np.array_equal(out, strided)

run("checked mode", None, causal=True, block_q=32, block_k=32, interpret=True)
