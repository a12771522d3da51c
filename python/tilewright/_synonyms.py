"""Errors for arguments under the names that other libraries use: they name ours."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_ATTENTION = {
    "is_causal": "causal=True",
    "sm_scale": "scale",
    "softmax_scale": "scale",
    "qk_scale": "scale",
    "mask": "mask_mod (a function), block_mask, or score_mod=scores.bias(table) for an array",
    "attn_mask": "mask_mod (a function), block_mask, or score_mod=scores.bias(table) for an array",
    "attention_mask": "mask_mod (a function), block_mask, or kv_lengths for padding",
    "key_padding_mask": "kv_lengths, or segment_ids and kv_segment_ids",
    "bias": "score_mod=scores.bias(table)",
    "attn_bias": "score_mod=scores.bias(table)",
    "alibi_slopes": "score_mod=scores.alibi(slopes)",
    "softcap": "score_mod=scores.softcap(cap)",
    "logits_soft_cap": "score_mod=scores.softcap(cap)",
    "dropout_p": "dropout",
    "dropout_rate": "dropout",
    "window_size": "window=(left, right)",
    "local_window_size": "window=(left, right)",
    "sliding_window": "window=(left, 0)",
    "q_segment_ids": "segment_ids",
    "cu_seqlens_q": "cu_seqlens",
    "cu_seqlens_k": "kv_cu_seqlens",
    "key_value_seq_lengths": "kv_lengths",
    "query_seq_lengths": "segment_ids, or cu_seqlens for packed sequences",
    "implementation": 'kernel_options={"engine": ...}',
    "backend": 'kernel_options={"engine": ...}',
    "cache_seqlens": "kv_lengths",
    "s_aux": "sinks",
    "return_softmax_lse": "return_lse=True",
    "return_residual": "return_lse=True",
    "return_residuals": "return_lse=True",
    "return_attn_probs": "return_lse=True",
    "q": "query",
    "k": "key",
    "v": "value",
}
_MHA = {
    "is_causal": "causal",
    "scale": "sm_scale",
    "softmax_scale": "sm_scale",
    "mask": "segment_ids, or flex_attention with mask_mod",
    "attn_mask": "segment_ids, or flex_attention with mask_mod",
    "bias": "flex_attention with score_mod=scores.bias(table)",
    "query": "q",
    "key": "k",
    "value": "v",
}
_NORM = {
    "epsilon": "eps",
    "variance_epsilon": "eps",
    "scale": "weight",
    "gamma": "weight",
    "beta": "bias",
    "normalized_shape": "weight, whose dimensions are normalised",
}
_TABLES = {"mha": _MHA, "mha_reference": _MHA}


def names_synonyms(function: Callable[P, R]) -> Callable[P, R]:
    """Makes the function's TypeError for an unknown argument suggest our name for it."""
    name = function.__name__
    known = inspect.signature(function).parameters
    table = _TABLES.get(name, _NORM if "norm" in name else _ATTENTION)

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        for given in options:
            if given not in known:
                ours = table.get(given)
                hint = f"; use {ours}" if ours else f" of {', '.join(known)}"
                raise TypeError(f"[{name}] expected no argument `{given}`{hint}")
        return function(*arguments, **options)

    return call
