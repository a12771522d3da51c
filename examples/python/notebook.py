"""The FlexAttention notebook's cases: one mod each, drawn and checked against the definition.

usage: notebook.py [LENGTH [FOLDER]]: with a folder, the pictures of the masks are written there.
"""

import pathlib
import sys

import numpy as np

import tilewright as tw

heads, dim = 2, 16
length = int(sys.argv[1]) if len(sys.argv) > 1 else 256
width = 16  # of the picture whose pixels the positions of sasa and natten are
height = length // width
rng = np.random.default_rng(0)
cases = {}  # name: the arguments of flex_attention


# ---- Score mods.

cases["noop"] = dict()


def checkerboard(score, b, h, q, kv):
    score = tw.where(abs(kv - q) % 1 == 0, score * 0.5, score)
    return tw.where(abs(kv - q) % 2 == 0, score * 2.0, score)


cases["checkerboard"] = dict(score_mod=checkerboard)


def causal_score(score, b, h, q, kv):
    return tw.where(q >= kv, score, -float("inf"))


cases["causal_score"] = dict(score_mod=causal_score)

slopes = tw.capture(np.exp2(-8 * np.arange(1, heads + 1) / heads).astype(np.float32), "slopes")


def alibi_table(score, b, h, q, kv):
    return score + (q - kv) * slopes[h]


cases["alibi_table"] = dict(score_mod=alibi_table, causal=True)


def alibi_computed(score, b, h, q, kv):
    return score + (q - kv) * tw.exp2(-(h + 1) * 8.0 / heads)


cases["alibi_computed"] = dict(score_mod=alibi_computed, causal=True)


def soft_cap(score, b, h, q, kv):
    return 2 * tw.tanh(score / 2)


cases["soft_cap"] = dict(score_mod=soft_cap, causal=True)

cases["soft_cap_approx"] = dict(score_mod=tw.scores.softcap(2, approx=True), causal=True)


# ---- Masks.


def causal(b, h, q, kv):
    return q >= kv


cases["causal"] = dict(mask_mod=causal)

window = min(1024, length // 4)


def sliding_window(b, h, q, kv):
    return (q >= kv) & (q - kv <= window)


cases["sliding_window"] = dict(mask_mod=sliding_window)

prefix = min(2048, length // 4)


def prefix_lm(b, h, q, kv):
    return (kv <= prefix) | (q >= kv)


cases["prefix_lm"] = dict(mask_mod=prefix_lm)

lengths = np.array([1, 1, 2, 2, 2]) * length // 8
document = tw.capture(np.repeat(np.arange(5), lengths).astype(np.int32), "document")


def documents(b, h, q, kv):
    return (q >= kv) & (document[q] == document[kv])


cases["document"] = dict(mask_mod=documents)


def sasa(b, h, q, kv):
    rows = abs(q // width - kv // width)
    columns = abs(q % width - kv % width)
    return (rows <= 8) & (columns <= 8)


cases["sasa"] = dict(mask_mod=sasa)


def natten(b, h, q, kv):
    row = tw.clamp(q // width, 3, height - 1 - 3)  # the 7 x 7 kernel stays on the canvas
    column = tw.clamp(q % width, 3, width - 1 - 3)
    return (abs(row - kv // width) <= 3) & (abs(column - kv % width) <= 3)


cases["natten"] = dict(mask_mod=natten)

intervals = tw.capture(np.array([[0, 7], [1, 7], [7, 12]], np.int32), "intervals")


def vision(b, h, q, kv):
    image = kv // 3
    return (intervals[image, 0] <= q) & (q < intervals[image, 1])


cases["vision"] = dict(mask_mod=vision)


# ---- Packed sequences: query, key and value are views of (tokens, heads, dim).

offsets = np.cumsum([0, *rng.integers(1, length // 4, 16)]).astype(np.int32)
cases["jagged"] = dict(causal=True, cu_seqlens=offsets, layout="bshd")


def draw(name, q_len, kv_len, arguments, folder):
    """Draws a case's mask, given by its mask mod, by causal, or by scores of -inf."""
    mod = arguments.get("mask_mod") or arguments.get("score_mod")
    if "cu_seqlens" in arguments:
        mod = tw.masks.jagged(tw.masks.causal(), tw.capture(arguments["cu_seqlens"]))
    elif arguments.get("causal"):
        mod = tw.masks.causal()
    if mod is not None:
        size = max(1, q_len // 32)
        tw.create_block_mask(mod, None, None, q_len, kv_len, BLOCK_SIZE=size).save(
            str(pathlib.Path(folder, f"case_{name}.png"))
        )


# The score mods again, in NumPy on whole rows.
steepness = np.exp2(-8 * np.arange(1, heads + 1) / heads)[:, None, None]
plain = {
    "checkerboard": lambda score, q, kv: np.where((kv - q) % 2 == 0, score, score / 2),
    "causal_score": lambda score, q, kv: np.where(q >= kv, score, -np.inf),
    "alibi_table": lambda score, q, kv: score + (q - kv) * steepness,
    "alibi_computed": lambda score, q, kv: score + (q - kv) * steepness,
    "soft_cap": lambda score, q, kv: 2 * np.tanh(score / 2),
    "soft_cap_approx": lambda score, q, kv: 2 * np.tanh(score / 2),
}


def dense(name, query, key, value, mask_mod=None, causal=False, **others):
    """The definition on all pairs, with heads in the second dimension."""
    score = query @ np.swapaxes(key, 2, 3) / np.sqrt(query.shape[3])
    q, kv = np.arange(query.shape[2])[:, None], np.arange(key.shape[2])
    if name in plain:
        score = plain[name](score, q, kv)
    if mask_mod is not None:
        score = np.where(tw.create_mask(mask_mod, 1, 1, *score.shape[2:]), score, -np.inf)
    if causal:
        score = np.where(q >= kv, score, -np.inf)
    weight = np.exp(score - score.max(axis=3, keepdims=True))
    return weight / weight.sum(axis=3, keepdims=True) @ value


for name, arguments in cases.items():
    q_len, kv_len = {"vision": (12, 9), "jagged": (offsets[-1],) * 2}.get(name, (length, length))
    shape = {"jagged": lambda n: (1, n, heads, dim)}.get(name, lambda n: (1, heads, n, dim))
    query = rng.standard_normal(shape(q_len)).astype(np.float32)
    key, value = rng.standard_normal((2, *shape(kv_len))).astype(np.float32)
    out, pullback = tw.flex_attention_vjp(query, key, value, **arguments)
    gradients = pullback(np.ones_like(out))
    if name == "jagged":
        parts = [
            dense(name, *(x[:, a:b].swapaxes(1, 2) for x in (query, key, value)), causal=True)
            for a, b in zip(offsets, offsets[1:], strict=False)
        ]
        want = np.concatenate(parts, axis=2).swapaxes(1, 2)
    else:
        want = dense(name, query, key, value, **arguments)
    error = np.abs(out - want).max()
    # With dout = 1 this sums all probabilities, whose rows sum to 1.
    total = gradients.value.sum()
    print(f"{name:16} error {error:.1e}, sum of the gradient of value {total:.1f}")
    assert error < 1e-5 and abs(total - out.size) < 1e-3 * out.size
    if len(sys.argv) > 2:
        draw(name, q_len, kv_len, arguments, sys.argv[2])
