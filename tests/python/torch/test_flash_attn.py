"""flash-attn's functions, and the library as an implementation of torch's flash attention."""

import dense_torch as dense
import pytest
import torch

import tilewright.torch as twt
from tilewright.torch import _flash_impl


def inputs(queries, keys, batch=2):
    return (
        dense.normal(batch, queries, 4, 8),
        dense.normal(batch, keys, 2, 8),
        dense.normal(batch, keys, 2, 6),
    )


def band(left, right, shift):
    def mask_mod(b, h, q, kv):
        distance = kv - q - (shift if isinstance(shift, int) else shift[b])
        keep = distance <= (1 << 20 if right < 0 else right)
        return keep & (distance >= (-(1 << 20) if left < 0 else -left))

    return mask_mod


def definition(q, k, v, mask, score_mod=None, sinks=None):
    out, lse, _ = dense.attention(
        *(x.transpose(1, 2) for x in (q, k, v)), score_mod, mask, sinks=sinks
    )
    return out.transpose(1, 2), lse


@pytest.mark.parametrize("lengths", [(7, 7), (5, 12), (12, 5)])
@pytest.mark.parametrize("causal, window", [(False, (-1, -1)), (True, (-1, -1)), (True, (3, 2)), (False, (2, 3)), (False, (-1, 1))])  # fmt: skip
def test_dense(lengths, causal, window):
    q, k, v = inputs(*lengths)
    sinks = dense.normal(4)
    out, lse = twt.flash_attn_func(
        *(q, k, v), causal=causal, window_size=window, softcap=3.0, return_attn_probs=True,
        learnable_sink=sinks,
    )  # fmt: skip
    bounds = window[0], 0 if causal else window[1]
    want, want_lse = definition(
        *(q, k, v, band(*bounds, lengths[1] - lengths[0])),
        lambda s, b, h, i, j: 3 * torch.tanh(s / 3),
        sinks,
    )
    dense.close(out, want)
    dense.close(lse, want_lse)
    tensors = [q, k, v, sinks]
    for x, y in zip(
        dense.gradients([out, lse], tensors),
        dense.gradients([want, want_lse], tensors),
        strict=True,
    ):
        dense.close(x, y)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("causal, window", [(False, (-1, -1)), (True, (-1, -1)), (True, (3, 0))])
def test_packed(same, causal, window):
    starts = torch.tensor([0, 4, 4, 11], dtype=torch.int32)
    kv_starts = starts if same else torch.tensor([0, 6, 7, 12], dtype=torch.int32)
    q, k, v = (x[0] for x in inputs(11, 11 if same else 12))
    out, lse = twt.flash_attn_varlen_func(
        *(q, k, v, starts, kv_starts, 7, 7), causal=causal, window_size=window,
        return_attn_probs=True,
    )  # fmt: skip
    parts = []
    for n in (0, 2):  # the one between has no queries
        rows = slice(starts[n], starts[n + 1])
        columns = slice(kv_starts[n], kv_starts[n + 1])
        part = q[None, rows], k[None, columns], v[None, columns]
        shift = part[1].shape[1] - part[0].shape[1]
        parts.append(definition(*part, band(window[0], 0 if causal else window[1], shift)))
    dense.close(out, torch.cat([x[0] for x, _ in parts]))
    dense.close(lse, torch.cat([x[0] for _, x in parts], 1))


@pytest.mark.parametrize("paged", [False, True])
def test_cache(paged):
    used = torch.tensor([3, 9], dtype=torch.int32)
    q = torch.randn(2, 2, 4, 8, dtype=torch.float64)
    new_k, new_v = (torch.randn(2, 2, 2, 8, dtype=torch.float64) for _ in range(2))
    keys, values = (torch.randn(2, 12, 2, 8, dtype=torch.float64) for _ in range(2))
    table = None
    caches = [keys.clone(), values.clone()]
    if paged:
        table = torch.tensor([[5, 0, 2], [1, 4, 3]], dtype=torch.int32)
        pages = [x.new_zeros(6, 4, 2, 8) for x in caches]
        for page, x in zip(pages, caches, strict=True):
            page[table.long()] = x.unflatten(1, (3, 4))
        caches = pages
        table[0, 2] = -1  # never read
    out, lse = twt.flash_attn_with_kvcache(
        *(q, *caches), new_k, new_v, cache_seqlens=used, page_table=table, causal=True,
        window_size=(5, 0), return_softmax_lse=True,
    )  # fmt: skip
    for b in range(2):
        n = int(used[b])
        whole = [
            torch.cat([x[b, :n], new[b]])[None]
            for x, new in ((keys, new_k), (values, new_v))
        ]  # fmt: skip
        want, want_lse = definition(q[b : b + 1], *whole, band(5, 0, n + 2 - 2))
        dense.close(out[b : b + 1], want)
        dense.close(lse[b : b + 1], want_lse)
        if not paged:
            assert torch.equal(caches[0][b, : n + 2], whole[0][0])


def test_refusals():
    q, k, v = inputs(4, 4)
    with pytest.raises(
        NotImplementedError, match=r"\[flash_attn_func\] expected qv to be left out"
    ):
        twt.flash_attn_func(q, k, v, qv=q)
    with pytest.raises(NotImplementedError, match="rotary_cos"):
        twt.flash_attn_with_kvcache(q, k, v, rotary_cos=q)
    with pytest.raises(ValueError, match="expected q of 3 dimensions"):
        twt.flash_attn_varlen_func(q, k, v, None, None)
    with pytest.raises(TypeError, match="window_size"):
        twt.flash_attn_func(q, k, v, window_size=3)


@pytest.fixture
def implementation():
    """Registers the CUDA operators for the CPU, where torch has none under these names."""
    handle = _flash_impl._activate("CPU")
    yield
    handle.remove()


@pytest.mark.parametrize("causal", [False, True])
def test_operators_of_sdpa(implementation, causal):
    q, k, v = (dense.normal(2, 3, n, 8) for n in (5, 5, 5))
    aten = torch.ops.aten
    with torch.no_grad():
        forward = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=0.3)
        dout = torch.randn_like(forward[0])
        gradients = aten._scaled_dot_product_flash_attention_backward(
            *(dout, q, k, v, *forward[:2], torch.empty(0), torch.empty(0), *forward[4:6]),
            *(0.0, causal, *forward[6:8]),
            scale=0.3,
        )
    want, lse, _ = dense.attention(q, k, v, None, band(-1, 0 if causal else -1, 0), 0.3)
    dense.close(forward[0], want)
    dense.close(forward[1], lse)
    for x, y in zip(gradients, torch.autograd.grad(want, (q, k, v), dout), strict=True):
        dense.close(x, y)


def test_operators_of_packed_sequences(implementation):
    starts = torch.tensor([0, 3, 10], dtype=torch.int32)
    kv_starts = torch.tensor([0, 5, 12], dtype=torch.int32)
    q, k, v = (dense.normal(n, h, 8) for n, h in ((10, 4), (12, 2), (12, 2)))
    aten = torch.ops.aten
    with torch.no_grad():
        out, lse, *state = aten._flash_attention_forward(
            *(q, k, v, starts, kv_starts, 7, 7, 0.0, True, False)
        )
        dout = torch.randn_like(out)
        gradients = aten._flash_attention_backward(
            *(dout, q, k, v, out, lse, starts, kv_starts, 7, 7, 0.0, True, *state[:2])
        )
    want = twt.flash_attn_varlen_func(q, k, v, starts, kv_starts, causal=True)
    dense.close(out, want)
    for x, y in zip(gradients, torch.autograd.grad(want, (q, k, v), dout), strict=True):
        dense.close(x, y)
    with pytest.raises(RuntimeError, match="dropout_p=0"):
        aten._flash_attention_forward(q, k, v, starts, kv_starts, 7, 7, 0.5, True, False)


def test_the_registry_of_torch():
    from torch.nn import attention

    twt.register_flash_attention()
    assert "TILEWRIGHT" in attention.list_flash_attention_impls()
    attention.activate_flash_attention_impl("TILEWRIGHT")
    try:
        assert attention.current_flash_attention_impl() == "TILEWRIGHT"
    finally:
        attention.restore_flash_attention_impl()
