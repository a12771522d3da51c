"""The functions of the package flash-attn.

Signatures are those of FlashAttention-3 (flash_attn_interface.py in hopper/ of Dao-AILab's
flash-attention), with learnable_sink, score_mod and mask_mod of FlashAttention-4.
"""

import torch
from torch.nn.attention.flex_attention import AuxRequest

from . import _errors, scores
from ._attention import flex_attention
from ._options import flag, number

_NAMES = {
    "query": "q",
    "key": "k",
    "value": "v",
    "scale": "softmax_scale",
    "sinks": "learnable_sink",
    "cu_seqlens": "cu_seqlens_q",
    "kv_cu_seqlens": "cu_seqlens_k",
    "kv_lengths": "seqused_k",
}
_CACHE_NAMES = {**_NAMES, "key": "k_cache", "value": "v_cache", "kv_lengths": "cache_seqlens"}


@_errors.of_caller("flash_attn_func", _NAMES)
def flash_attn_func(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
    *,
    learnable_sink=None,
    score_mod=None,
    mask_mod=None,
):
    """Attention of q (B, L, Hq, E), k (B, S, Hkv, E), v (B, S, Hkv, Ev); out (B, L, Hq, Ev).

    causal and window_size=(left, right) count from the bottom right: query i is at key S - L + i.
    softcap: scores become softcap * tanh(score / softcap); learnable_sink (Hq,); score_mod and
    mask_mod are those of `flex_attention`, where positions count from the top left.
    return_attn_probs adds lse (B, Hq, L). num_splits, pack_gqa and sm_margin are hints and ignored;
    qv, descales and attention_chunk are refused by name. Differentiable once.
    """
    op = "flash_attn_func"
    _refuse(
        op, qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        attention_chunk=attention_chunk,
    )  # fmt: skip
    _expect_rank(op, 4, q=q, k=k, v=v)
    options = _band(op, causal, window_size, k.shape[1] - q.shape[1])
    return _attend(
        op, q, k, v, options, softmax_scale, softcap, deterministic, return_attn_probs,
        learnable_sink, score_mod, mask_mod,
    )  # fmt: skip


@_errors.of_caller("flash_attn_varlen_func", _NAMES)
def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q=None,
    max_seqlen_k=None,
    seqused_q=None,
    seqused_k=None,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
    *,
    learnable_sink=None,
    score_mod=None,
    mask_mod=None,
):
    """Attention of packed sequences: q (total, Hq, E), k, v (total, Hkv, E); out (total, Hq, Ev).

    cu_seqlens_q, cu_seqlens_k (N + 1,) int32: where sequences start. seqused_k (N,): how many keys
    of each are used. return_attn_probs adds lse (Hq, total). Other arguments are those of
    `flash_attn_func`; lengths are read from cu_seqlens, so that max_seqlen_q and max_seqlen_k may
    be omitted. seqused_q is refused by name.
    """
    op = "flash_attn_varlen_func"
    _refuse(
        op, qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        attention_chunk=attention_chunk, seqused_q=seqused_q,
    )  # fmt: skip
    _expect_rank(op, 3, q=q, k=k, v=v)
    options = {"cu_seqlens": cu_seqlens_q, "kv_cu_seqlens": cu_seqlens_k}
    if seqused_k is not None:
        options["kv_lengths"] = seqused_k
    if cu_seqlens_q is cu_seqlens_k and seqused_k is None:
        options.update(_band(op, causal, window_size, 0), kv_cu_seqlens=None)
    elif _is_bounded(op, causal, window_size):
        keys = cu_seqlens_k.diff() if seqused_k is None else seqused_k
        options.update(_band(op, causal, window_size, (keys - cu_seqlens_q.diff()).to(q.device)))
    result = _attend(
        op, *(x.unsqueeze(0) for x in (q, k, v)), options, softmax_scale, softcap, deterministic,
        return_attn_probs, learnable_sink, score_mod, mask_mod,
    )  # fmt: skip
    if return_attn_probs:
        return tuple(x.squeeze(0) for x in result)
    return result.squeeze(0)


@_errors.of_caller("flash_attn_with_kvcache", _CACHE_NAMES)
def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
    *,
    learnable_sink=None,
    score_mod=None,
):
    """Decoding: q (B, L, Hq, E) over a cache (B, S, Hkv, E), of which cache_seqlens keys are used.

    k, v (B, L_new, Hkv, E) are first written to the cache, in place, after cache_seqlens keys.
    cache_seqlens: an integer or (B,) int32. page_table (B, pages) int32: the cache is (blocks, page
    size, Hkv, E), and its pages are gathered for the call. cache_batch_idx (B,): which row of the
    cache each batch reads; cache_leftpad (B,): keys before it are ignored. causal and window_size
    count from the last key of each batch. return_softmax_lse adds lse (B, Hq, L). The cache gets no
    gradients. Rotary embeddings, packed queries, qv, descales and attention_chunk are refused by
    name; the rest are hints and ignored.
    """
    op = "flash_attn_with_kvcache"
    _refuse(
        op, qv=qv, rotary_cos=rotary_cos, rotary_sin=rotary_sin, rotary_seqlens=rotary_seqlens,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k_new=cu_seqlens_k_new, q_descale=q_descale,
        k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk,
    )  # fmt: skip
    _expect_rank(op, 4, q=q, k_cache=k_cache, v_cache=v_cache)
    batch, length = q.shape[:2]
    if cache_seqlens is None or isinstance(cache_seqlens, int):
        size = k_cache.shape[1] * (1 if page_table is None else page_table.shape[1])
        there = size - (0 if k is None else k.shape[1]) if cache_seqlens is None else cache_seqlens
        cache_seqlens = torch.full((batch,), there, dtype=torch.int32, device=q.device)
    used = cache_seqlens
    if k is not None:
        _expect_rank(op, 4, k=k, v=v)
        _append(op, k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, page_table)
        used = cache_seqlens + k.shape[1]
    keys, values = k_cache.detach(), v_cache.detach()
    if page_table is not None:
        pages = page_table.long().clamp(min=0)  # entries past a sequence's end are arbitrary
        keys, values = (x[pages].flatten(1, 2) for x in (keys, values))
    elif cache_batch_idx is not None:
        keys, values = (x[cache_batch_idx.long()] for x in (keys, values))
    options = {"kv_lengths": used.to(torch.int32)}
    if _is_bounded(op, causal, window_size):
        options.update(_band(op, causal, window_size, used - length))
    mask = None
    if cache_leftpad is not None:

        def mask(b, h, q_idx, kv_idx):
            return kv_idx >= cache_leftpad[b]

    return _attend(
        op, q, keys, values, options, softmax_scale, softcap, True, return_softmax_lse,
        learnable_sink, score_mod, mask,
    )  # fmt: skip


def _append(op, k_cache, v_cache, k, v, seqlens, batch_idx, page_table):
    """Writes new keys and values after those in the cache."""
    batch, new = k.shape[:2]
    at = seqlens.long()[:, None] + torch.arange(new, device=seqlens.device)
    if page_table is not None:
        size = k_cache.shape[1]
        rows, at = page_table.long().gather(1, at // size), at % size
    elif batch_idx is not None:
        rows = batch_idx.long()[:, None].expand(batch, new)
    else:
        rows = torch.arange(batch, device=at.device)[:, None].expand(batch, new)
    with torch.no_grad():
        k_cache[rows, at] = k.to(k_cache.dtype)
        v_cache[rows, at] = v.to(v_cache.dtype)


def _attend(
    op, q, k, v, options, scale, softcap, deterministic, with_lse, sinks, score_mod, mask_mod
):  # fmt: skip
    if softcap:
        cap = _softcap(number(op, "softcap", softcap))
        inner = score_mod
        if inner is None:
            score_mod = cap
        else:

            def score_mod(score, b, h, q_idx, kv_idx):
                return inner(cap(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)

    if mask_mod is not None:
        band = options.get("mask_mod")
        options["mask_mod"] = mask_mod if band is None else _both(band, mask_mod)
    result = flex_attention(
        *(q, k, v, score_mod),
        scale=scale,
        enable_gqa=True,
        return_aux=AuxRequest(lse=True) if with_lse else None,
        sinks=sinks,
        layout="bshd",
        deterministic=bool(deterministic),
        **options,
    )
    return (result[0], result[1].lse) if with_lse else result


def _softcap(cap):
    if not torch.compiler.is_dynamo_compiling():
        return scores.softcap(cap)
    return lambda score, b, h, q_idx, kv_idx: cap * torch.tanh(score / cap)


def _both(a, b):
    return lambda *place: a(*place) & b(*place)


def _band(op, causal, window, shift):
    """flex_attention's options for a window that counts from the last key; `shift`: how many more
    keys than queries there are, for all or for each batch, (B,)."""
    left, right = _bounds(op, causal, window)
    if left < 0 and right < 0:
        return {}
    of_batch = isinstance(shift, torch.Tensor)
    if not of_batch:
        low, high = (-1 if left < 0 else left - shift), (-1 if right < 0 else right + shift)
        if (left < 0 or low >= 0) and (right < 0 or high >= 0):
            return {"causal": True} if (low, high) == (-1, 0) else {"window": (low, high)}
        # `window` takes no negative bounds: such bands become a mask_mod.

    def band(b, h, q_idx, kv_idx):
        distance = kv_idx - q_idx - (shift[b] if of_batch else shift)
        if left < 0:
            return distance <= right
        inside = distance >= -left
        return inside if right < 0 else inside & (distance <= right)

    return {"mask_mod": band}


def _bounds(op, causal, window):
    try:
        left, right = (int(bound) for bound in window)
    except (TypeError, ValueError):
        raise TypeError(f"[{op}] expected window_size=(left, right) but got {window!r}") from None
    return left, 0 if flag(op, "causal", causal) else right


def _is_bounded(op, causal, window):
    return max(_bounds(op, causal, window)) >= 0


def _refuse(op, **arguments):
    for name, value in arguments.items():
        if value is None or (isinstance(value, int) and value == 0):
            continue
        shown = type(value).__name__ if isinstance(value, torch.Tensor) else repr(value)
        raise NotImplementedError(f"[{op}] expected {name} to be left out but got {shown}")


def _expect_rank(op, rank, **tensors):
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"[{op}] expected {name} to be a tensor but got {type(x).__name__}")
        if x.dim() != rank:
            raise _errors.BadInput(
                f"[{op}] expected {name} of {rank} dimensions but got {tuple(x.shape)}"
            )
