"""Attention under other interfaces: Triton's tutorial's and torch's own."""

import torch

from . import _errors
from ._attention import flex_attention


@_errors.of_caller(
    "attention",
    {
        "query": "q",
        "key": "k",
        "value": "v",
        "scale": "sm_scale",
        " Try setting enable_gqa=True for GQA.": "",
    },
)
def attention(q, k, v, causal, sm_scale, warp_specialize=True):
    """``softmax(sm_scale * q k^T) v``: the function of Triton's tutorial on fused attention.

    q, k, v: (batch, heads, length, head dimension), any strides and lengths. causal: only keys up
    to the query's position attend, counted from the top left. warp_specialize is the tutorial's
    hint and ignored. Differentiable once; errors are those of `flex_attention`.
    """
    return flex_attention(q, k, v, scale=sm_scale, causal=causal)


@_errors.of_caller(
    "scaled_dot_product_attention",
    {
        "causal": "is_causal",
        "dropout": "dropout_p",
        "the tensors that mask_mod captures": "attn_mask",
        "the tensors that score_mod captures": "attn_mask",
    },
)
def scaled_dot_product_attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
):
    """`torch.nn.functional.scaled_dot_product_attention`, fused.

    query (N, ..., Hq, L, E), key (N, ..., H, S, E), value (N, ..., H, S, Ev), whose leading
    dimensions broadcast; or nested tensors of the jagged layout, also with is_causal. attn_mask:
    bools (True attends) or floats to add, broadcast to (N, ..., Hq, L, S), with a gradient if it
    requires one; or a `torch.nn.attention.bias.CausalBias`. is_causal counts from the top left.
    Dropout draws its seed from torch's CPU generator. A row with nothing to attend to gives 0.
    Nested tensors of the strided layout, which torch deprecates, go to torch's own function.
    """
    op = "scaled_dot_product_attention"
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"[{op}] expected {name} to be a tensor but got {type(x).__name__}")
    if any(x.is_nested and x.layout == torch.strided for x in (query, key, value)):
        return torch._C._nn.scaled_dot_product_attention(
            *(query, key, value, attn_mask, dropout_p, is_causal),
            scale=scale,
            enable_gqa=enable_gqa,
        )
    if not query.dtype == key.dtype == value.dtype:
        raise _errors.BadInput(
            f"[{op}] Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if attn_mask is not None and is_causal:
        from torch.nn.attention.bias import CausalBias

        if isinstance(attn_mask, CausalBias):
            raise _errors.BadInput(f"[{op}] CausalBias should not be used with causal=True")
        raise _errors.BadInput(f"[{op}] Explicit attn_mask should not be set when is_causal=True")
    options = {"causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    if isinstance(dropout_p, int | float) and not 0 <= dropout_p <= 1:
        raise _errors.BadInput(f"[{op}] expected dropout_p in [0, 1] but got {dropout_p}")
    if dropout_p == 1:
        out = scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa
        )
        return torch.nn.functional.dropout(out, 1.0)
    if dropout_p:
        options["dropout"] = dropout_p
        options["seed"] = _random_seed()
    if query.is_nested:
        if attn_mask is not None:
            raise _errors.BadInput(
                f"[{op}] expected no attn_mask with nested tensors but got one: give mask_mod or "
                "score_mod to flex_attention"
            )
        return flex_attention(query, key, value, **options)
    ranks = [x.dim() for x in (query, key, value)]
    least = 3 if enable_gqa else 2
    if min(ranks) < least:
        raise _errors.BadInput(
            f"[{op}] Expected query, key, and value to all be at least {least} dimensional"
            f"{' with enable_gqa=True' if enable_gqa else ''}, but got "
            f"{[tuple(x.shape) for x in (query, key, value)]}"
        )
    if ranks == [4, 4, 4] and key.shape[1] == value.shape[1] == 1 < query.shape[1]:
        options["enable_gqa"], least = True, 3  # not a copy of the head for each of the query's
    query, key, value = _broadcast(op, query, key, value, least)
    if query.shape[-1] == 0 or value.shape[-1] == 0:
        return _without_columns(query, key, value, attn_mask, options)
    if query.dim() == 4 and attn_mask is None:
        return flex_attention(query, key, value, **options)
    lead = query.shape[:-2]
    if attn_mask is not None:
        options.update(_mask_options(op, attn_mask, lead, query.shape[-2], key.shape[-2], query))
    flat = [_four_dimensions(x) for x in (query, key, value)]
    out = flex_attention(*flat, **options)
    return out if query.dim() == 4 else out.reshape(*lead, *out.shape[-2:])


def _broadcast(op, query, key, value, kept):
    """Broadcasts the dimensions before the last `kept` ones, as torch's products do."""
    leads = [x.shape[:-kept] for x in (query, key, value)]
    if leads[0] == leads[1] == leads[2]:
        return query, key, value
    try:
        lead = torch.broadcast_shapes(*leads)
    except RuntimeError:
        hint = ". Try setting enable_gqa=True for GQA." if kept == 2 else ""
        raise _errors.BadInput(
            f"[{op}] expected dimensions of query, key and value before the last {kept} that "
            f"broadcast but got {[tuple(x.shape) for x in (query, key, value)]}{hint}"
        ) from None
    return [x.expand(*lead, *x.shape[-kept:]) for x in (query, key, value)]


def _without_columns(query, key, value, attn_mask, options):
    """Attention with a head dimension of 0: all scores are 0, or the output is empty."""
    width = value.shape[-1]
    if query.shape[-1] == 0:
        query, key = (torch.nn.functional.pad(x, (0, 1)) for x in (query, key))
    value = value if width else torch.nn.functional.pad(value, (0, 1))
    out = scaled_dot_product_attention(
        *(query, key, value, attn_mask, options.get("dropout", 0.0), options["causal"]),
        scale=options["scale"],
        enable_gqa=options["enable_gqa"],
    )
    return out[..., :width]


def _random_seed():
    if torch.compiler.is_dynamo_compiling():  # drawing it would read a number from a tensor
        return torch.randint(-(1 << 31), 1 << 31, (2,), dtype=torch.int32, device="cpu")
    return torch.randint(1 << 62, (), device="cpu").item()


def _four_dimensions(x):
    if x.dim() == 4:
        return x
    if x.dim() < 4:
        return x[(None,) * (3 - x.dim())].unsqueeze(1)
    return x.flatten(0, -4)


def _mask_options(op, mask, lead, queries, keys, query):
    """flex_attention's options for an attn_mask."""
    from torch.nn.attention.bias import CausalBias, CausalVariant

    if isinstance(mask, CausalBias):
        if mask.variant == CausalVariant.UPPER_LEFT:
            return {"causal": True}
        if keys >= queries:
            return {"window": (-1, keys - queries)}
        shift = keys - queries
        return {"mask_mod": lambda b, h, q, kv: kv - q <= shift}
    if not isinstance(mask, torch.Tensor) or not (
        mask.dtype == torch.bool or mask.dtype.is_floating_point
    ):
        raise _errors.BadInput(
            f"[{op}] Expected attn_mask dtype to be bool or float but got "
            f"{getattr(mask, 'dtype', type(mask).__name__)}"
        )
    try:
        mask.expand(*lead, queries, keys)
    except RuntimeError:
        raise _errors.BadInput(
            f"[{op}] expected an attn_mask that broadcasts to {(*lead, queries, keys)} but got "
            f"{tuple(mask.shape)}"
        ) from None
    if query.dim() < 4:
        # (N, L, E) is a batch of single heads.
        mask = _four_dimensions(mask[(None,) * (query.dim() - mask.dim())])
    elif mask.dim() > 4:
        mask = mask.expand(*lead[:-1], *mask.shape[-3:]).flatten(0, -4)
    else:
        mask = mask[(None,) * (4 - mask.dim())]
    # A dimension of 1 is broadcast; its gradient is summed where it is computed.
    whole = [n == 1 for n in mask.shape]

    def element(b, h, q, kv):
        index = (b, h, q, kv)
        return mask[tuple(0 if one else i for one, i in zip(whole, index, strict=True))]

    if mask.dtype == torch.bool:
        return {"mask_mod": element}
    return {"score_mod": lambda score, b, h, q, kv: score + element(b, h, q, kv)}
