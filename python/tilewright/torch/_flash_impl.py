"""The library as an implementation of torch's flash attention: SDPA, jagged tensors, varlen_attn.

torch.nn.attention has a registry of implementations of its flash-attention operators on CUDA. This
module registers one, "TILEWRIGHT", which `torch.nn.attention.activate_flash_attention_impl` turns
on and `restore_flash_attention_impl` turns off.
"""

import torch

from .. import _functions
from . import _attention, _environment, _errors, _flash_attn, _ops, _sites

NAME = "TILEWRIGHT"


def register_flash_attention():
    """Registers the library with torch.nn.attention as the flash attention "TILEWRIGHT".

    After ``torch.nn.attention.activate_flash_attention_impl("TILEWRIGHT")``, CUDA calls that torch
    gives to flash attention, `scaled_dot_product_attention` and `varlen_attn` among them, run here,
    forward and backward. Dropout, alibi_slopes and page tables are refused by name.
    """
    from torch.nn.attention import register_flash_attention_impl

    register_flash_attention_impl(NAME, register_fn=_activate)


class _Handle:
    """While it is alive, torch's operators are routed here."""

    def __init__(self, library):
        self._library = library

    def remove(self):
        if self._library is not None:
            self._library._destroy()
        self._library = None


def _activate(dispatch_key="CUDA"):
    library = torch.library.Library("aten", "IMPL", dispatch_key)
    for name, function in _OPERATORS.items():
        operator = getattr(torch.ops.aten, name, None)
        if operator is not None and _takes(operator.default, function):
            library.impl(name, function, dispatch_key)
    return _Handle(library)


def _takes(operator, function):
    """Whether the function knows every argument of the operator's schema."""
    known = function.__code__.co_varnames[: _count(function)]
    return all(argument.name in known for argument in operator._schema.arguments)


def _count(function):
    return function.__code__.co_argcount + function.__code__.co_kwonlyargcount


def _site(
    query, key, value, starts, kv_starts, causal, scale, left, right, seqused, gradient, op
):  # fmt: skip
    """The site and operands of a call with tensors (B, L, H, D); packed ones have a batch of 1."""
    named, window = {}, (-1 if left is None else left, -1 if right is None else right)
    if starts is None:
        band = _flash_attn._band(op, causal, window, key.shape[1] - query.shape[1])
        batch = query.shape[0]
    else:
        batch = starts.shape[0] - 1
        named["cu_seqlens"] = starts
        if kv_starts is not starts:
            named["kv_cu_seqlens"] = kv_starts
        same = kv_starts is starts and seqused is None
        keys = kv_starts.diff() if seqused is None else seqused
        band = _flash_attn._band(op, causal, window, 0 if same else keys - starts.diff())
    if seqused is not None:
        named["kv_lengths"] = seqused
    mask = _functions.NONE
    if "mask_mod" in band:
        sizes = _functions.Sizes(batch, query.shape[2], query.shape[1], key.shape[1])
        mask = _environment.traced(
            *(op, "mask_mod", band["mask_mod"], True, sizes, torch.float32, query.device)
        )
    spec = _attention.spec_of(
        op,
        names=tuple(named),
        score=_functions.NONE,
        mask=mask,
        grad=gradient,
        scale=scale,
        enable_gqa=True,
        return_lse=False,
        return_aux=None,
        kernel_options=None,
        causal=band.get("causal", False),
        window=band.get("window"),
        dropout=0.0,
        layout="bshd",
        deterministic=True,
    )
    return _sites.site(spec), (query, key, value, *named.values(), *mask.arrays)


def _refuse(op, dropout, **others):
    if dropout:
        raise _errors.BadInput(f"[{op}] expected dropout_p=0 of {NAME} but got {dropout}")
    for name, given in others.items():
        if given is not None and given is not False:
            raise _errors.BadInput(f"[{op}] expected no {name} with {NAME} but got one")


def _forward(
    query,
    key,
    value,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    return_debug_mask,
    *,
    scale=None,
    window_size_left=None,
    window_size_right=None,
    seqused_k=None,
    alibi_slopes=None,
    block_table=None,
    num_splits=None,
):
    op = "_flash_attention_forward"
    _refuse(
        op, dropout_p, return_debug_mask=return_debug_mask, alibi_slopes=alibi_slopes,
        block_table=block_table,
    )  # fmt: skip
    packed = cum_seq_q is not None
    if packed:
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
    site, operands = _site(
        query, key, value, cum_seq_q, cum_seq_k, is_causal, scale, window_size_left,
        window_size_right, seqused_k, False, op,
    )  # fmt: skip
    out, lse = _ops.run(site, operands, None, 0)
    if packed:
        out, lse = out.squeeze(0), lse.squeeze(0)
    return out, lse, *_no_random_state(query), query.new_empty(0)


def _no_random_state(query):
    options = {"dtype": torch.uint64, "device": query.device}
    return torch.zeros(2, **options), torch.zeros((), **options)


def _backward(
    grad_out,
    query,
    key,
    value,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    rng_state,
    unused,
    *,
    scale=None,
    window_size_left=None,
    window_size_right=None,
):
    op = "_flash_attention_backward"
    _refuse(op, dropout_p)
    packed = cum_seq_q is not None and cum_seq_q.numel() > 0
    if packed:
        grad_out, query, key, value, out, logsumexp = (
            x.unsqueeze(0) for x in (grad_out, query, key, value, out, logsumexp)
        )
    else:
        cum_seq_q = cum_seq_k = None
    site, operands = _site(
        query, key, value, cum_seq_q, cum_seq_k, is_causal, scale, window_size_left,
        window_size_right, None, True, op,
    )  # fmt: skip
    needs = (True, True, True, *[False] * (len(operands) - 3))
    gradients = _ops.run(
        site.backward(needs, False)[0], (*operands, out, logsumexp, grad_out), None, 0
    )
    return tuple(x.squeeze(0) for x in gradients) if packed else tuple(gradients)


def _sdpa_forward(
    query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None
):
    out, lse, *rest = _forward(
        *(x.transpose(1, 2) for x in (query, key, value)),
        *(None, None, query.shape[2], key.shape[2], dropout_p, is_causal, return_debug_mask),
        scale=scale,
    )
    return out.transpose(1, 2), lse, None, None, query.shape[2], key.shape[2], *rest


def _sdpa_backward(
    grad_out,
    query,
    key,
    value,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    philox_seed,
    philox_offset,
    *,
    scale=None,
):
    tensors = (x.transpose(1, 2) for x in (grad_out, query, key, value, out))
    gradients = _backward(
        *tensors,
        *(logsumexp, None, None, max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset),
        scale=scale,
    )
    return tuple(x.transpose(1, 2) for x in gradients)


_OPERATORS = {
    "_flash_attention_forward": _forward,
    "_flash_attention_backward": _backward,
    "_scaled_dot_product_flash_attention": _sdpa_forward,
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
}
