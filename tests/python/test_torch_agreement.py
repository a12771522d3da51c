"""The semantics of torch's FlexAttention, compared with torch itself if it is installed."""

import numpy as np
import pytest

import tilewright as tw

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

_TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

# Uncompiled, torch computes the definition densely, and warns that this is slow.
pytestmark = pytest.mark.filterwarnings("ignore")


def tensors(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def both(where, tanh):
    """The mods, written with one library's functions."""
    return {
        "noop": lambda s, b, h, q, kv: s,
        "relative": lambda s, b, h, q, kv: s + (q - kv),
        "alibi": lambda s, b, h, q, kv: s + (kv - q) * 2.0 ** (-3) * (h + 1),
        "softcap": lambda s, b, h, q, kv: 2 * tanh(s / 2),
        "causal_score": lambda s, b, h, q, kv: where(q >= kv, s, -float("inf")),
        "checkerboard": lambda s, b, h, q, kv: where((kv - q) % 2 == 0, s * 0.5, s * 2),
        "division": lambda s, b, h, q, kv: s + (kv - q) // 3 * 0.125 + (kv - q) % 5 * 0.25,
        "batch_and_head": lambda s, b, h, q, kv: where(h == 1, s * (b + 1), s),
        "clamped": lambda s, b, h, q, kv: s.clamp(-0.5, 0.5),
    }


MINE = both(tw.where, tw.tanh)
TORCH = both(lambda c, x, y: torch.where(c, x, y), lambda x: torch.tanh(x))
MASKS = {
    "none": None,
    "causal": lambda b, h, q, kv: q >= kv,
    "window": lambda b, h, q, kv: (q >= kv) & (q - kv <= 9),
    "prefix": lambda b, h, q, kv: (kv < 5) | (q >= kv),
    "empty_rows": lambda b, h, q, kv: (q % 3 != 1) & (kv < 20),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("mod", MINE)
def test_out_and_lse(mod, mask):
    query, key, value = tensors((2, 4, 37, 8), (2, 2, 29, 8), (2, 2, 29, 6))
    mask_mod = MASKS[mask]
    block = mask_mod and flex.create_block_mask(mask_mod, 2, 4, 37, 29, device="cpu")
    want, want_lse = flex.flex_attention(
        *map(torch.from_numpy, (query, key, value)),
        score_mod=TORCH[mod],
        block_mask=block,
        enable_gqa=True,
        return_lse=True,
    )
    mine = mask_mod and tw.create_block_mask(mask_mod, 2, 4, 37, 29)
    out, lse = tw.flex_attention(
        query, key, value, MINE[mod], mine, enable_gqa=True, return_lse=True
    )
    np.testing.assert_allclose(out, want.numpy(), atol=1e-6)
    np.testing.assert_allclose(lse, want_lse.numpy(), atol=1e-6)


@pytest.mark.parametrize("sizes", [(1, 1, 300, 300), (2, 3, 257, 130)])
@pytest.mark.parametrize("mask", [name for name in MASKS if name != "none"])
def test_block_masks(mask, sizes):
    theirs = flex.create_block_mask(MASKS[mask], *sizes, device="cpu")
    mine = tw.create_block_mask(MASKS[mask], *sizes)
    assert mine.shape == tuple(theirs.shape)
    assert mine.seq_lengths == tuple(theirs.seq_lengths)
    assert tuple(theirs.BLOCK_SIZE) == mine.BLOCK_SIZE
    if not any(n % 128 for n in sizes[2:]) or _TORCH >= (2, 15):  # 2.11 has a negative one else
        assert np.isclose(mine.sparsity(), theirs.sparsity())
    assert np.array_equal(mine.to_dense(), theirs.to_dense().numpy())
    for name in ("kv", "full_kv", "q", "full_q"):
        number, indices = (
            getattr(theirs, f"{name}_{x}").numpy() for x in ("num_blocks", "indices")
        )
        assert np.array_equal(getattr(mine, f"{name}_num_blocks"), number)
        for place in np.ndindex(number.shape):
            count = number[place]
            assert np.array_equal(
                getattr(mine, f"{name}_indices")[place][:count], indices[place][:count]
            )
    dense = flex.create_mask(MASKS[mask], *sizes, device="cpu").numpy()
    assert np.array_equal(tw.create_mask(MASKS[mask], *sizes), dense)
    assert np.array_equal(mine.elements(), dense)


def test_gradients_of_inputs_and_of_a_captured_table():
    query, key, value = tensors((1, 2, 12, 4), (1, 2, 10, 4), (1, 2, 10, 4))
    table = np.random.default_rng(1).standard_normal((2, 22))
    leaves = [torch.from_numpy(x).requires_grad_() for x in (query, key, value, table)]
    q, k, v, t = leaves

    # Uncompiled torch refuses gradients of flex_attention on the CPU, so this is its definition.
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / 2
    index = torch.arange(12)[:, None] - torch.arange(10)[None] + 10
    scores = scores + t[:, index]
    scores = scores.masked_fill(index < 10, -float("inf"))
    out = torch.softmax(scores, -1) @ v
    dout = np.random.default_rng(2).standard_normal(out.shape)
    out.backward(torch.from_numpy(dout))

    captured = tw.capture(table)
    mine, pullback = tw.flex_attention_vjp(
        query, key, value, lambda s, b, h, i, j: s + captured[h, i - j + 10], causal=True
    )
    np.testing.assert_allclose(mine, out.detach().numpy(), atol=1e-12)
    gradients = pullback(dout)
    have = [*gradients[:3], *gradients.captured]
    for x, leaf in zip(have, leaves, strict=True):
        np.testing.assert_allclose(x, leaf.grad.numpy(), atol=1e-12)


def test_norms():
    x, weight, bias, dy = tensors((5, 33), (33,), (33,), (5, 33))
    leaves = [torch.from_numpy(a).requires_grad_() for a in (x, weight, bias)]
    want = torch.nn.functional.layer_norm(leaves[0], (33,), *leaves[1:])
    want.backward(torch.from_numpy(dy))
    y, pullback = tw.layer_norm_vjp(x, weight, bias)
    np.testing.assert_allclose(y, want.detach().numpy(), atol=1e-12)
    for have, leaf in zip(pullback(dy)[:3], leaves, strict=True):
        np.testing.assert_allclose(have, leaf.grad.numpy(), atol=1e-12)
