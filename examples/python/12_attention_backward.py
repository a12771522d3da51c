"""The backward pass in the Pallas form: delta is computed first, then two scans: one over the
queries for dK and dV, one over the keys for dQ."""

import numpy as np
import pallas_attention as pallas

BATCH, LENGTH, HEADS, DIM = 1, 75, 2, 16
q, k, v, dout = (
    np.random.default_rng(1).uniform(-1, 1, (4, BATCH, LENGTH, HEADS, DIM)).astype(np.float32)
)


def run(name, segment_ids, **options):
    print(name)
    out, lse = pallas.forward(q, k, v, segment_ids, **options)
    gradients = pallas.backward(q, k, v, segment_ids, out, lse, dout, **options)
    _, *expected = pallas.dense(q, k, v, segment_ids, dout, **options)
    for part, ours, wanted in zip(("dq", "dk", "dv"), gradients, expected, strict=True):
        error = np.abs(ours - wanted).max()
        print(f"  {part}: largest error {error:.3g}")
        assert error < 5e-6


run("attention", None, block_q=32, block_k=16)
run("causal", None, causal=True, block_q=16, block_k=32)
run("segments", pallas.segments(BATCH, LENGTH), sm_scale=0.25, block_q=32, block_k=32)
