"""Your first mod"""

#: Attention computes `softmax(mask(score_mod(scale * Q K^T))) V`. A *score mod* changes a score, a
#: *mask mod* says which pairs of query and key attend; both are functions that become part of the
#: kernel. This notebook writes one of each, looks at masks as pictures, and takes gradients.
import numpy as np

import tilewright as tw

heads, length, dim = 4, 1024, 32
query, key, value = np.random.default_rng(0).standard_normal(
    (3, 1, heads, length, dim), dtype=np.float32
)

# ---- A score mod
#: ALiBi: a penalty that grows with the distance, with a slope for each head. Arrays are read
#: through `tw.capture`.
slopes = tw.capture(np.array([0.5, 0.25, 0.125, 0.0625], np.float32))


def alibi(score, b, h, q, kv):
    return score + slopes[h] * (kv - q)


out = tw.flex_attention(query, key, value, score_mod=alibi, causal=True)
print(out.shape)

# ---- A mask, as a picture
#: Every query attends to itself and the 256 keys before it. `create_block_mask` builds what
#: kernels read: blocks that attend as a whole are dark, blocks in part light, others are skipped.


def window(b, h, q, kv):
    return (q >= kv) & (q - kv <= 256)


mask = tw.create_block_mask(window, None, None, length, length, BLOCK_SIZE=64)
mask

# ---- Masks compose
#: Three documents in one sequence, and in each of them the window.
ids = tw.capture(np.repeat([0, 1, 2], [300, 500, 224]).astype(np.int32))
documents = tw.create_block_mask(
    tw.and_masks(window, tw.masks.document(ids)), None, None, length, length, BLOCK_SIZE=64
)
documents

# ---- Masks of the library
tw.create_block_mask(tw.masks.prefix_lm(200), None, None, length, length, BLOCK_SIZE=64)

# ---- Skipped blocks cost nothing
print(f"{mask.sparsity():.0f}% of the blocks are skipped, {documents.sparsity():.0f}% by documents")
out = tw.flex_attention(query, key, value, score_mod=alibi, block_mask=documents)

# ---- Gradients
#: The pullback takes the gradient of the output to those of the inputs, captured arrays included.
out, pullback = tw.flex_attention_vjp(query, key, value, score_mod=alibi, block_mask=documents)
gradients = pullback(np.ones_like(out))
print(gradients.query.shape, gradients.captured[0].shape)

# ---- Check it against the definition
q, kv = np.arange(length)[:, None], np.arange(length)
scores = query @ key.swapaxes(-1, -2) / np.sqrt(dim) + slopes.array[:, None, None] * (kv - q)
attends = (q >= kv) & (q - kv <= 256) & (ids.array[q] == ids.array[kv])
p = np.where(attends, np.exp(scores - np.where(attends, scores, -np.inf).max(-1, keepdims=True)), 0)
dense = p / p.sum(-1, keepdims=True) @ value
print(np.abs(out - dense).max() < 1e-5)
