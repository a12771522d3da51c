"""Attention by its definition in torch: dense, and differentiable by torch."""

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention.flex_attention import _vmap_for_bhqkv


def over_pairs(mod, batch, heads, queries, keys, score=None):
    """A mod evaluated on every pair: (batch, heads, queries, keys)."""
    index = [torch.arange(n) for n in (batch, heads, queries, keys)]
    prefix = () if score is None else (0,)
    mapped = _vmap_for_bhqkv(mod, prefix=prefix)
    with TransformGetItemToIndex():
        result = mapped(*index) if score is None else mapped(score, *index)
    return result.expand(batch, heads, queries, keys)


def attention(query, key, value, score_mod=None, mask=None, scale=None, sinks=None):
    """(out, lse, max_scores), BHSD; a fully masked row gives 0 and -inf.

    mask: a mask mod or a bool tensor that broadcasts to (B, H, L, S).
    """
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * scale
    if score_mod is not None:
        scores = over_pairs(score_mod, *scores.shape, scores).to(query.dtype)
    if callable(mask):
        mask = over_pairs(mask, *scores.shape)
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    most = scores.amax(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -torch.inf)
    shift = torch.where(most.isneginf(), 0, most).detach()
    hidden = scores.isneginf()
    weights = torch.where(hidden, 0, torch.exp(torch.where(hidden, 0, scores - shift[..., None])))
    total = weights.sum(-1)
    if sinks is not None:
        total = total + torch.exp(sinks[:, None] - shift)
    empty = total == 0
    safe = torch.where(empty, 1, total)
    out = (weights @ value) / safe[..., None]
    lse = torch.where(empty, -torch.inf, torch.log(safe) + shift)
    return out, lse, most.detach()


def close(have, want, tolerance=1e-12):
    """Asserts equality up to rounding, relative to the largest value; -inf must match."""
    assert have.shape == want.shape
    have, want = have.detach().double(), want.detach().double()
    assert torch.equal(have.isneginf(), want.isneginf())
    have, want = (torch.where(x.isneginf(), 0, x) for x in (have, want))
    if not have.numel():
        return
    error = (have - want).abs().max()
    assert error <= tolerance * max(1.0, want.abs().max()), error


def normal(*shape, dtype=torch.float64, grad=True):
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


def gradients(outputs, inputs, seed=1):
    """Gradients of the sum of the outputs with random weights."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(
        (
            torch.where(x.isneginf(), 0, x)
            * torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
        ).sum()
        for x in outputs
    )
    return torch.autograd.grad(total, inputs, allow_unused=True)
