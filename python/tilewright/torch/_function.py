"""Autograd of attention: a Function for each pass; the backward pass has no derivative."""

import torch

from . import _batching, _ops

_grad_enabled = torch.is_grad_enabled

_NO_FORWARD_MODE = (
    "[flex_attention] expected derivatives in reverse mode (torch.func.grad, vjp) but got forward "
    "mode (jvp)"
)


class PlainAttention(torch.autograd.Function):
    """apply(site, mask, seed, *operands) -> out, lse and, if the site asks for them, max_scores.

    Has no setup_context, which costs an inspect.signature in every call. Transforms of torch.func
    need one: they use `Attention`.
    """

    @staticmethod
    def forward(ctx, site, mask, seed, *operands):
        results = site(operands, mask, seed)
        if results is None:
            results = tuple(_ops.run(site, operands, mask, seed))
        _save(ctx, site, mask, seed, operands, results)
        return results

    @staticmethod
    def backward(ctx, dout, dlse, *_):
        needs = ctx.needs_input_grad[3:]
        if dout is None and dlse is None:
            return (None,) * (3 + len(needs))
        if _batching.is_legacy(dout) or _batching.is_legacy(dlse):
            return _batching.legacy(lambda *d: PlainAttention.backward(ctx, *d), dout, dlse)
        saved = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(saved[-2])
        site, mask, seed = ctx.call
        site, places = site.backward(needs, dlse is not None)
        operands = (*saved, dout) if dlse is None else (*saved, dout, dlse)
        if _grad_enabled() or not _ops.is_plain():
            gradients = AttentionBackward.apply(site, mask, seed, *operands)
        else:  # derivatives of the gradients are not requested
            gradients = _ops.run_plain(site, operands, mask, seed)
        return None, None, None, *[None if i is None else gradients[i] for i in places]

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError(_NO_FORWARD_MODE)


def _save(ctx, site, mask, seed, operands, results):
    ctx.call = site, mask, seed
    ctx.save_for_backward(*operands, *results[:2])
    ctx.set_materialize_grads(False)
    if len(results) > 2:
        ctx.mark_non_differentiable(results[2])


class Attention(PlainAttention):
    """The same for transforms of torch.func, dispatch modes and tracers."""

    @staticmethod
    def forward(site, mask, seed, *operands):
        return tuple(_ops.run(site, operands, mask, seed))

    @staticmethod
    def setup_context(ctx, inputs, output):
        site, mask, seed, *operands = inputs
        _save(ctx, site, mask, seed, operands, output)

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
