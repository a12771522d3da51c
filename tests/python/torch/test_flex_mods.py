"""flex_attention with mods and block masks, against the definition."""

import dense_torch as dense
import pytest
import torch
from test_attention import causal, check
from torch.nn.attention import flex_attention as flex

import tilewright.torch as twt


def tensors(length=20, keys=24, heads=4, kv_heads=2, batch=2):
    return [
        dense.normal(batch, h, n, 8)
        for h, n in ((heads, length), (kv_heads, keys), (kv_heads, keys))
    ]


SCORES = {
    "alibi": lambda s, b, h, q, kv: s + (kv - q) * 2.0**-3 * (h + 1),
    "softcap": lambda s, b, h, q, kv: 2 * torch.tanh(s / 2),
    "causal": lambda s, b, h, q, kv: torch.where(q >= kv, s, -float("inf")),
    "squared": lambda s, b, h, q, kv: s * s + b,
    "nothing of the score": lambda s, b, h, q, kv: (q - kv) * 0.25,
}


@pytest.mark.parametrize("name", SCORES)
def test_score_mods(name):
    mod = SCORES[name]
    query, key, value = tensors()
    if name == "nothing of the score":
        out = twt.flex_attention(query, key, value, mod, enable_gqa=True)
        gradients = torch.autograd.grad(out.sum(), (query, key))
        assert all((x == 0).all() for x in gradients)
        dense.close(out, dense.attention(query, key, value, mod)[0])
        return
    check(query, key, value, score_mod=mod, enable_gqa=True, expected={"score_mod": mod})


@pytest.mark.parametrize("masked", [False, True])
def test_captured_gradients(masked):
    slopes, table, scale, offset = (
        dense.normal(4),
        dense.normal(4, 45),
        dense.normal(),
        dense.normal(1, 1),
    )

    def mod(s, b, h, q, kv):
        bias = torch.sigmoid(slopes)[h] * (kv - q) * 0.1 + table[h, q - kv + 24] + table[h, kv]
        return s * torch.exp(scale * 0.1) + bias + offset[0, 0]

    mask = causal if masked else None
    options = {"mask_mod": mask} if masked else {}
    check(
        *tensors(),
        captured=[slopes, table, scale, offset],
        score_mod=mod,
        enable_gqa=True,
        **options,
        expected={"score_mod": mod, "mask": mask},
    )


def test_integer_captures_and_documents():
    ids = torch.arange(20) // 7
    query, key, value = tensors(20, 20)

    def document(b, h, q, kv):
        return (ids[q] == ids[kv]) & (q >= kv)

    expected = {"mask": document}
    for _ in range(3):
        check(query, key, value, mask_mod=document, enable_gqa=True, expected=expected)
    mask = twt.create_block_mask(document, None, None, 20, 20, device="cpu", BLOCK_SIZE=16)
    check(query, key, value, block_mask=mask, enable_gqa=True, expected=expected)
    theirs = flex.create_block_mask(document, None, None, 20, 20, device="cpu", BLOCK_SIZE=16)
    check(query, key, value, block_mask=theirs, enable_gqa=True, expected=expected)


def test_masks_intersect():
    query, key, value = tensors(20, 20)
    mask = twt.create_block_mask(causal, None, None, 20, 20, device="cpu")

    def odd(b, h, q, kv):
        return (kv % 2 == 1) | (h == 0)

    def both(b, h, q, kv):
        return (q >= kv) & odd(b, h, q, kv) & (q - kv <= 5)

    options = {"block_mask": mask, "mask_mod": odd, "window": (5, -1), "enable_gqa": True}
    check(query, key, value, **options, expected={"mask": both})


def test_new_closures_record_nothing_new():
    query, key, value = tensors()
    want = None
    for n in range(4):
        table = torch.full((4,), float(n), dtype=torch.float64)

        def mod(s, b, h, q, kv, table=table):
            return s + table[h] * (q - kv)

        out = twt.flex_attention(query, key, value, mod, enable_gqa=True)
        dense.close(out, dense.attention(query, key, value, mod)[0])
        assert want is None or not torch.equal(out, want)
        want = out


def test_library_objects():
    query, key, value = tensors(20, 20)
    slopes = dense.normal(4)
    check(
        query,
        key,
        value,
        captured=[slopes],
        score_mod=twt.scores.alibi(slopes),
        mask_mod=twt.masks.causal() & twt.masks.sliding_window(6),
        enable_gqa=True,
        expected={
            "score_mod": lambda s, b, h, q, kv: s + slopes[h] * (kv - q),
            "mask": lambda b, h, q, kv: (q >= kv) & (q - kv <= 6),
        },
    )


def test_composed_scores():
    inputs = [x.requires_grad_() for x in tensors(20, 20)]
    slopes = dense.normal(4)
    check(
        *inputs,
        captured=[slopes],
        score_mod=twt.scores.compose(twt.scores.softcap(2.0), twt.scores.alibi(slopes)),
        enable_gqa=True,
        expected={
            "score_mod": lambda s, b, h, q, kv: 2 * torch.tanh((s + slopes[h] * (kv - q)) / 2)
        },
    )


def test_lists_in_any_order():
    query, key, value = tensors(32, 48)
    counts = torch.tensor([[[2, 1]]], dtype=torch.int32)
    indices = torch.tensor([[[[2, 0, -1], [1, -1, -1]]]], dtype=torch.int32)
    mask = flex.BlockMask.from_kv_blocks(
        counts,
        indices,
        BLOCK_SIZE=16,
        mask_mod=lambda b, h, q, kv: (q + kv) % 3 != 0,
        seq_lengths=(32, 48),
        compute_q_blocks=False,
    )
    listed = torch.zeros(2, 3, dtype=torch.bool)
    listed[0, [2, 0]] = True
    listed[1, 1] = True
    q, kv = torch.arange(32)[:, None], torch.arange(48)
    keep = listed[q // 16, kv // 16] & ((q + kv) % 3 != 0)
    check(query, key, value, block_mask=mask, enable_gqa=True, expected={"mask": keep})
