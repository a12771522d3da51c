"""The FlexAttention notebook's cases in JAX: outputs and gradients against the definition.

usage: flex_attention.py [LENGTH]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import tilewright.jax as twj

jax.config.update("jax_default_matmul_precision", "highest")  # for the definition, on GPUs
heads, dim = 2, 16
length = int(sys.argv[1]) if len(sys.argv) > 1 else 256
width = 16  # of the image whose pixels are the positions in sasa and natten
height = length // width
rng = np.random.default_rng(0)


# ---- Score mods.


def noop(score, b, h, q, kv):
    return score


def checkerboard(score, b, h, q, kv):
    score = jnp.where(abs(kv - q) % 1 == 0, score * 0.5, score)
    return jnp.where(abs(kv - q) % 2 == 0, score * 2.0, score)


def causal_score(score, b, h, q, kv):
    return jnp.where(q >= kv, score, -jnp.inf)


def alibi_table(slopes):
    def score_mod(score, b, h, q, kv):
        return score + (q - kv) * slopes[h]

    return score_mod


def alibi_computed(score, b, h, q, kv):
    return score + (q - kv) * jnp.exp2(-(h + 1) * 8.0 / heads)


def soft_cap(score, b, h, q, kv):
    return 2 * jnp.tanh(score / 2)


soft_cap_approx = twj.scores.softcap(2, approx=True)  # the hardware's tanh


# ---- Masks.

window = min(1024, length // 4)
prefix = min(2048, length // 4)
sizes = np.array([1, 1, 2, 2, 2]) * length // 8
document = jnp.asarray(np.repeat(np.arange(5), sizes), jnp.int32)
intervals = jnp.array([[0, 7], [1, 7], [7, 12]])
offsets = np.cumsum([0, *rng.integers(1, length // 4, 16)]).astype(np.int32)
sequence = jnp.asarray(np.repeat(np.arange(16), np.diff(offsets)), jnp.int32)


def causal(b, h, q, kv):
    return q >= kv


def sliding_window(b, h, q, kv):
    return (q >= kv) & (q - kv <= window)


def prefix_lm(b, h, q, kv):
    return (kv <= prefix) | (q >= kv)


def documents(b, h, q, kv):
    return (q >= kv) & (document[q] == document[kv])


def sasa(b, h, q, kv):
    rows = abs(q // width - kv // width)
    columns = abs(q % width - kv % width)
    return (rows <= 8) & (columns <= 8)


def natten(b, h, q, kv):
    row = jnp.clip(q // width, 3, height - 1 - 3)  # the 7 x 7 window stays inside the image
    column = jnp.clip(q % width, 3, width - 1 - 3)
    return (abs(row - kv // width) <= 3) & (abs(column - kv % width) <= 3)


def vision(b, h, q, kv):
    image = kv // 3
    return (intervals[image, 0] <= q) & (q < intervals[image, 1])


def jagged(b, h, q, kv):
    return (q >= kv) & (sequence[q] == sequence[kv])


# ---- Each case: a score mod, its plain form for the definition, a mask.

cases = {  # name: (score_mod, another one for the definition or None, mask_mod)
    "noop": (noop, None, None),
    "checkerboard": (checkerboard, None, None),
    "causal_score": (causal_score, None, None),
    "alibi_table": (alibi_table, None, causal),  # slopes from a table, which get gradients
    "alibi_computed": (alibi_computed, None, causal),
    "soft_cap": (soft_cap, None, causal),
    "soft_cap_approx": (soft_cap_approx, soft_cap, causal),
    "causal": (None, None, causal),
    "sliding_window": (None, None, sliding_window),
    "prefix_lm": (None, None, prefix_lm),
    "document": (None, None, documents),
    "sasa": (None, None, sasa),
    "natten": (None, None, natten),
    "vision": (None, None, vision),
    "jagged": (None, None, jagged),
}


def score_of(score_mod, slopes):
    return score_mod(slopes) if score_mod is alibi_table else score_mod


def dense(score_mod, mask_mod, query, key, value, slopes):
    """The definition, on all pairs at once: the mods see arrays that broadcast."""
    batch, _, rows, _ = query.shape
    columns = key.shape[2]
    sizes = (batch, heads, rows, columns)
    b, h, q, kv = (jnp.arange(n).reshape(-1, *[1] * (3 - i)) for i, n in enumerate(sizes))
    score = jnp.einsum("bhqd,bhkd->bhqk", query, key) / np.sqrt(dim)
    if score_mod is not None:
        score = score_of(score_mod, slopes)(score, b, h, q, kv)
    if mask_mod is not None:
        score = jnp.where(mask_mod(b, h, q, kv), score, -jnp.inf)
    return jax.nn.softmax(score) @ value


def fused(name, score_mod, mask_mod, query, key, value, slopes):
    score_mod = score_mod and score_of(score_mod, slopes)
    if name == "jagged":  # packed sequences need no mask; (tokens, heads) in memory
        packed = [jnp.swapaxes(x, 1, 2) for x in (query, key, value)]
        out = twj.flex_attention(*packed, causal=True, cu_seqlens=offsets, layout="bshd")
        return jnp.swapaxes(out, 1, 2)
    if mask_mod is not None and name != "vision":  # as data, so that blocks are skipped
        mask = twj.create_block_mask(mask_mod, None, None, query.shape[2], key.shape[2])
        return twj.flex_attention(query, key, value, score_mod, mask)
    return twj.flex_attention(query, key, value, score_mod, mask_mod=mask_mod)


def run(function):
    """The output and the gradients of query, key, value and slopes, compiled."""

    def loss(arrays, weight):
        out = function(*arrays)
        return (out * weight).sum(), out

    return jax.jit(jax.grad(loss, has_aux=True))


slopes = jnp.exp2(-8 * jnp.arange(1, heads + 1) / heads)
for name, (score_mod, plain, mask_mod) in cases.items():
    q_len, kv_len = {"vision": (12, 9), "jagged": (offsets[-1],) * 2}.get(name, (length, length))
    lengths = (q_len, kv_len, kv_len)
    arrays = [jnp.asarray(rng.standard_normal((1, heads, n, dim)), jnp.float32) for n in lengths]
    weight = jnp.asarray(rng.standard_normal((1, heads, q_len, dim)), jnp.float32)
    ours = run(lambda *x, case=(name, score_mod, mask_mod): fused(*case, *x))
    definition = run(lambda *x, case=(plain or score_mod, mask_mod): dense(*case, *x))
    have, out = ours([*arrays, slopes], weight)
    want, wanted = definition([*arrays, slopes], weight)
    error = jnp.abs(out - wanted).max()
    # Relative to the largest gradient of each array; ALiBi's slopes sum those of all pairs.
    worst = max(
        float(jnp.abs(a - b).max() / jnp.maximum(jnp.abs(b).max(), 1))
        for a, b in zip(have, want, strict=True)
    )
    print(f"{name:16} error {error:.1e}, of the gradients {worst:.1e}")
    # The hardware's tanh is within 2^-11, so scores are within 2^-10, outputs within 2^-9 max|v|.
    tolerance = 1e-2 if "approx" in name and jax.default_backend() == "gpu" else 2e-5
    assert error < tolerance and worst < tolerance
