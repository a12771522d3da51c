"""Programmable attention: ALiBi with learned slopes under a sliding window within documents, with
all gradients, checked against a dense computation."""

import numpy as np

import tilewright as tw

HEADS, LENGTH, DIM = 2, 150, 8

q, k, v = np.random.default_rng(1).uniform(-1, 1, (3, 1, HEADS, LENGTH, DIM)).astype(np.float32)
slopes = np.array([0.05, 0.01], np.float32)
captured = tw.capture(slopes, "slopes")


def alibi(score, b, h, q_idx, kv_idx):
    return score + captured[h] * (kv_idx - q_idx)


def same_document(b, h, q_idx, kv_idx):
    return q_idx // 50 == kv_idx // 50


window = tw.masks.causal() & tw.masks.sliding_window(40) & same_document
out, pullback = tw.flex_attention_vjp(q, k, v, alibi, mask_mod=window)
gradients = pullback(np.ones_like(out))

# Densely, in f64.
i, j = np.ogrid[:LENGTH, :LENGTH]
attends = (j <= i) & (i - j <= 40) & (i // 50 == j // 50)
scores = np.einsum("bhid,bhjd->bhij", q.astype(np.float64), k) / np.sqrt(DIM)
scores = np.where(attends, scores + slopes[:, None, None] * (j - i), -np.inf)
p = np.exp(scores)
p /= p.sum(-1, keepdims=True)
expected = p @ v
dp = np.broadcast_to(v.astype(np.float64).sum(-1)[:, :, None, :], p.shape)
ds = p * (dp - (p * dp).sum(-1, keepdims=True))
d_slopes = (ds * (j - i)).sum((0, 2, 3))

# The same mods from text, and the mask as data that many calls can share.
mask = tw.create_block_mask(
    tw.parse_mod("0 <= q - kv <= 40 and q // 50 == kv // 50"), None, None, LENGTH, LENGTH
)
from_text = tw.flex_attention(
    q, k, v, tw.parse_mod("alibi(slopes)", slopes=slopes), block_mask=mask
)
for name, result, wanted, tolerance in [
    ("functions", out, expected, 1e-5),
    ("gradient of the slopes", gradients.captured[0], d_slopes, 1e-3),
    ("text and a block mask", from_text, expected, 1e-5),
]:
    error = np.abs(result - wanted).max()
    print(f"{name}: largest error {error:.3g}")
    assert error < tolerance
