"""Attention and norms of nested tensors in the jagged layout: packed sequences."""

import torch
from torch.nn.attention.flex_attention import AuxOutput

from . import _errors


def flex_attention(attention, query, key, value, options):
    """Runs `attention`, which takes packed sequences, on nested tensors (B, H, j, D); returns one.

    Positions that mods see restart in every sequence; their batch index counts sequences.
    """
    op = "flex_attention"
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not (isinstance(x, torch.Tensor) and x.is_nested and x.layout == torch.jagged):
            raise _errors.BadInput(
                f"[{op}] expected query, key and value to be nested tensors of layout torch.jagged, "
                f"as one of them is, but got {name} {_shown(x)}"
            )
        if x.dim() != 4 or x._ragged_idx != 2:
            raise _errors.BadInput(
                f"[{op}] expected nested {name} of shape (B, H, j, D), as transpose(1, 2) of (B, j, "
                f"H, D) gives it, but got {x.dim()} dimensions with the ragged one at "
                f"{x._ragged_idx}"
            )
        if x.lengths() is not None:
            raise _errors.BadInput(
                f"[{op}] expected nested {name} without holes but got one of torch.nested.narrow: "
                "use its contiguous()"
            )
    for name in ("cu_seqlens", "kv_cu_seqlens", "segment_ids", "kv_segment_ids"):
        if options.get(name) is not None:
            raise _errors.BadInput(f"[{op}] expected no {name} with nested tensors but got one")
    if options.get("layout", "bhsd") != "bhsd":
        raise _errors.BadInput(f'[{op}] expected layout "bhsd" of nested tensors but got "bshd"')
    if key.offsets() is not value.offsets() and not torch.equal(key.offsets(), value.offsets()):
        raise _errors.BadInput(
            f"[{op}] expected key and value of the same lengths but got other offsets"
        )
    if query.size(0) != key.size(0):
        raise _errors.BadInput(
            f"[{op}] expected as many sequences of keys as of queries, {query.size(0)}, but got "
            f"{key.size(0)}"
        )
    starts = query.offsets()
    own_starts = key.offsets() is starts
    result = attention(
        *(x.values().unsqueeze(0) for x in (query, key, value)),
        **{
            **options,
            "cu_seqlens": starts,
            "kv_cu_seqlens": None if own_starts else key.offsets(),
        },
    )
    if isinstance(result, torch.Tensor):
        return _nested(result.squeeze(0), query)
    out, rest = result
    if isinstance(rest, AuxOutput):
        return _nested(out.squeeze(0), query), AuxOutput(
            *(x if x is None else _nested(x.squeeze(0), query) for x in rest)
        )
    return _nested(out.squeeze(0), query), _nested(rest.squeeze(0), query)


def norm(function, op, x, weight, bias, residual):
    """Runs `function`, a norm of (x, weight, bias, residual), on rows of nested tensors."""
    for name, given in (("x", x), ("residual", residual)):
        if given is not None and not (
            given.is_nested and given.layout == torch.jagged and given.lengths() is None
        ):
            raise _errors.BadInput(
                f"[{op}] expected a nested {name} of layout torch.jagged without holes but got "
                f"{name} {_shown(given)}"
            )
    if residual is not None and residual.shape != x.shape:
        raise _errors.BadInput(
            f"[{op}] expected residual with the ragged size of x, which tensors made from the same "
            f"offsets have, but got {tuple(residual.shape)} and x {tuple(x.shape)}"
        )
    count = 1 if weight is None else weight.dim()
    if count > x.dim() - 1 - x._ragged_idx:
        raise _errors.BadInput(
            f"[{op}] expected to normalise over dimensions after the ragged one, {x._ragged_idx}, "
            f"but got the last {count} of {x.dim()}"
        )
    rest = None if residual is None else residual.values()
    results = function(x.values(), weight, bias, rest)
    if isinstance(results, torch.Tensor):
        return _nested(results, x)
    return tuple(_nested(result, x) for result in results)


def _nested(packed, like):
    """Rows (..., total, ...) as a nested tensor with the ragged dimension of `like`."""
    return torch.nested.nested_tensor_from_jagged(
        packed,
        offsets=like.offsets(),
        jagged_dim=like._ragged_idx,
        min_seqlen=like._maybe_min_seqlen,
        max_seqlen=like._maybe_max_seqlen,
    )


def _shown(x):
    if not isinstance(x, torch.Tensor):
        return type(x).__name__
    return f"of layout {x.layout}" if x.is_nested else f"a dense tensor of shape {tuple(x.shape)}"
