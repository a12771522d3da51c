"""Autograd of attention: a Function for each pass; the backward pass has no derivative."""

import torch

from .. import _core
from . import _batching, _ops

_grad_enabled = torch.is_grad_enabled

_NO_FORWARD_MODE = (
    "[flex_attention] expected derivatives in reverse mode (torch.func.grad, vjp) but got forward "
    "mode (jvp)"
)


class _Base(torch.autograd.Function):
    """Saves its operands, out and lse; `ctx.call` is (site, mask, seed, ...)."""

    @staticmethod
    def backward(ctx, dout, dlse=None, *_):
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad
        count = len(saved) - 2
        if dout is None and dlse is None:
            return (None,) * len(needs)
        if _batching.is_legacy(dout) or _batching.is_legacy(dlse):
            return _batching.legacy(lambda *d: _Base.backward(ctx, *d), dout, dlse)
        if dout is None:
            dout = torch.zeros_like(saved[-2])
        site, mask, seed = ctx.call[:3]
        site, places = site.backward(needs[-count:], dlse is not None)
        operands = (*saved, dout) if dlse is None else (*saved, dout, dlse)
        if _grad_enabled() or not _ops.is_plain():
            gradients = AttentionBackward.apply(site, mask, seed, *operands)
        else:  # derivatives of the gradients are not requested
            gradients = _ops.run_plain(site, operands, mask, seed)
        others = (None,) * (len(needs) - count)
        return *others, *[None if i is None else gradients[i] for i in places]

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError(_NO_FORWARD_MODE)


class PlainAttention(_Base):
    """apply((site, mask, seed, alone), *operands) -> out, lse and, if the site asks for them,
    max_scores; out alone if `alone`.

    Has no setup_context, which costs an inspect.signature in every call. Transforms of torch.func
    need one: they use `Attention`.
    """

    forward = _core.torch_attention_forward
    backward = _core.torch_attention_backward


def _forward(ctx, call, *operands):
    site, mask, seed, alone = call
    results = tuple(_ops.run(site, operands, mask, seed))
    _save(ctx, call, operands, results)
    return results[0] if alone else results


def _save(ctx, call, operands, results):
    ctx.call = call
    ctx.save_for_backward(*operands, *results[:2])
    ctx.set_materialize_grads(False)
    if len(results) > 2:
        ctx.mark_non_differentiable(results[2])


_core.implement_autograd(
    *(_forward, _Base.backward, _ops._modes, _ops._transforms, _ops._forward_ad, _grad_enabled)
)

#: PlainAttention.apply without torch's look for active transforms of torch.func, which costs time:
#: for calls where there are none.
apply_plain = super(torch.autograd.Function, PlainAttention).apply


def apply_alone(site, mask, seed, operands):
    """`out` of plain operands: by torch's own operator where it can be, by PlainAttention elsewhere.

    Which one is the same for every call of a kind, since checkpoints count what is saved.
    """
    dropout = None if _ops.fused is None else site.fused_dropout
    if dropout is not None and len(operands) <= 4 and _are_plain(operands):
        scale = None if mask is None else mask.numbered.scale
        fourth = operands[3] if len(operands) > 3 else None
        try:
            out = _ops.fused(*operands[:3], fourth, dropout, scale=scale)[0]
        except Exception:
            if not _core.fused_has_failed():
                raise
            out = None  # the Function raises it in its own class
        if out is not None:
            if mask is not None:
                out.grad_fn.metadata["numbered"] = mask.numbered
            return out
    return apply_plain((site, mask, seed, True), *operands)


_TENSORS = (torch.Tensor, torch.nn.Parameter)


def _are_plain(operands):
    """Whether all are tensors with memory on one device; any without would make torch take its own
    function for those, which computes nothing."""
    device = operands[0].device
    return device.type != "meta" and all(
        type(x) in _TENSORS and x.device == device for x in operands
    )


class Attention(_Base):
    """apply(site, mask, seed, *operands) -> out, lse and, if the site asks for them, max_scores.

    For transforms of torch.func, dispatch modes and tracers.
    """

    @staticmethod
    def forward(site, mask, seed, *operands):
        return tuple(_ops.run(site, operands, mask, seed))

    @staticmethod
    def setup_context(ctx, inputs, output):
        site, mask, seed, *operands = inputs
        _save(ctx, (site, mask, seed), operands, output)

    @staticmethod
    def vmap(info, in_dims, site, mask, seed, *operands):
        return _batching.batched(Attention, info, in_dims, site, mask, seed, operands)


class AttentionBackward(torch.autograd.Function):
    """apply(site, mask, seed, *operands) -> gradients."""

    @staticmethod
    def forward(site, mask, seed, *operands):
        return tuple(_ops.run(site, operands, mask, seed))

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(
            "[flex_attention] expected at most first derivatives but got a second one: the "
            "gradient of a gradient (as create_graph=True asks for) is not there"
        )

    @staticmethod
    def vmap(info, in_dims, site, mask, seed, *operands):
        return _batching.batched(AttentionBackward, info, in_dims, site, mask, seed, operands)


def _fused_backward_twice(dout, query, key, value, fourth, needs_gradient, out, lse, *rest, **_):
    """Gradients of `_ops.fused` that may be differentiated, which AttentionBackward refuses."""
    _, _, count, mask, dropout = rest[:5]
    if dout is None:  # nothing reaches out: torch's node asks all the same
        return None, None, None, None
    from ._block_mask import BlockMask

    core = _core.fused_mask(mask)
    mask = None if core is None else BlockMask.from_core(core, None, query.device)
    operands = (query, key, value, fourth)[:count]
    site, places = _core.fused_site(dropout).backward(tuple(needs_gradient[:count]), False)
    gradients = AttentionBackward.apply(site, mask, 0, *operands, out, lse, dout)
    found = [None if place is None else gradients[place] for place in places]
    return *found, *[None] * (4 - count)


if _ops.fused is not None:
    _ops.library.impl("fused_backward_twice", _fused_backward_twice, "CompositeImplicitAutograd")
