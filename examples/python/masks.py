"""Masks as data: built from a function, combined, drawn, used by attention."""

import numpy as np

import tilewright as tw

rng = np.random.default_rng(0)
documents = tw.capture(np.repeat(np.arange(6), [100, 300, 60, 200, 140, 224]).astype(np.int32))


def same_document(b, h, q, kv):
    return documents[q] == documents[kv]


mask = tw.create_block_mask(same_document, None, None, 1024, 1024, BLOCK_SIZE=64)
mask &= tw.create_block_mask(tw.masks.causal() & tw.masks.sliding_window(256), 1, 1, 1024, 1024)
print(mask)
print(f"{mask.sparsity():.1f}% of the blocks are empty; the mask takes {mask.nbytes} bytes")

query, key, value = rng.standard_normal((3, 1, 2, 1024, 32)).astype(np.float32)
out = tw.flex_attention(query, key, value, block_mask=mask)
same = tw.flex_attention(query, key, value, mask_mod=same_document, causal=True, window=(256, 0))
assert np.abs(out - same).max() < 1e-5
