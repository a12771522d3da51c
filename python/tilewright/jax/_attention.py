"""flex_attention on JAX arrays."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _block_mask as _numpy_block_mask
from .. import _core, _functions
from .._arguments import AttentionArguments
from .._attention import blocks_of as _blocks_of
from .._attention import kernel_options_of as _kernel_options_of
from .._synonyms import names_synonyms
from . import _attention_op, _mods, _primitive
from ._block_mask import BlockMask, wrap
from ._core_mods import from_core

_FLOATS = (jnp.float32, jnp.float64, jnp.float16, jnp.bfloat16)


class AuxOutput(NamedTuple):
    """Auxiliary results; None for those that were not requested."""

    lse: jax.Array | None = None  #: (B, Hq, L), natural log of the softmax's denominator
    max_scores: jax.Array | None = None  #: (B, Hq, L), of the scores after mods; no gradient


@names_synonyms
def flex_attention(
    query,
    key,
    value,
    score_mod=None,
    block_mask=None,
    scale=None,
    enable_gqa=False,
    return_lse=False,
    kernel_options=None,
    *,
    return_aux=None,
    mask_mod=None,
    causal=False,
    window=None,
    segment_ids=None,
    kv_segment_ids=None,
    cu_seqlens=None,
    kv_cu_seqlens=None,
    kv_lengths=None,
    sinks=None,
    dropout=0.0,
    seed=0,
    layout="bhsd",
    deterministic=True,
    device=None,
):
    """``softmax(mask(score_mod(scale * Q K^T))) V`` in one pass, in memory O(L + S).

    Shapes, for layout "bhsd" ("bshd": sequence before heads):
      query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev), all float32, float64, float16
      or bfloat16. Hq is a multiple of Hkv; if they differ, enable_gqa=True is required.

    score_mod(score, b, h, q_idx, kv_idx) -> score and mask_mod(b, h, q_idx, kv_idx) -> bool are
    functions of scalars in jnp, or objects of `scores` and `masks`. Arrays in their closures may be
    traced; float arrays that score_mod reads have gradients. block_mask: a BlockMask of this module
    or of tilewright. causal: kv <= q; window=(left, right): q - left <= kv <= q + right, -1 is
    unbounded; segment_ids (B, L), kv_segment_ids (B, S): only equal ids attend. Several masks are
    intersected. Positions count from the top left.

    cu_seqlens (N + 1,) int32: N sequences packed in a batch of 1; positions seen by mods restart.
    kv_lengths (B,), or (N,) with cu_seqlens: keys from there on are ignored, whatever the arrays
    hold. sinks (Hq,): one more logit per head in the denominator. dropout: the fraction of
    probabilities dropped by philox(seed, b, h, q, kv); seed is an integer or a scalar array. scale:
    None is 1 / sqrt(E); a traced scale has a gradient, and is applied before score_mod.
    kernel_options: torch's names, taken as hints, as in `tilewright.flex_attention`; checked=True
    runs in the checked mode: bounds, undefined values, races. Slow.

    Returns out (B, Hq, L, Ev) in query's layout; with return_lse=True (out, lse); with
    return_aux=AuxRequest(...) (out, AuxOutput). A row with nothing to attend to gives out 0 and lse
    -inf. Differentiable once, in reverse mode, in query, key, value, sinks and captured arrays,
    through out and lse. Raises ValueError, TypeError or NotImplementedError, naming the argument,
    if something does not fit, and XLA errors with the same text for what only values reveal.
    """
    arguments = AttentionArguments(**locals())
    op = "flex_attention"
    arguments.check(op)
    if device is not None:
        raise ValueError(
            f"[{op}] expected device=None, since JAX says where arrays are, but got {device!r}"
        )
    arrays = _arrays(op, arguments)
    sizes = _check(op, arrays, layout, enable_gqa)
    window = _window(op, arguments)
    dropout = _dropout(op, dropout)
    causal, deterministic = _flag(op, "causal", causal), _flag(op, "deterministic", deterministic)
    return_lse = _flag(op, "return_lse", return_lse)
    checked = bool((kernel_options or {}).get("checked", False))
    options = {k: v for k, v in (kernel_options or {}).items() if k != "checked"}
    forward, backward = _kernel_options_of(op, options)
    forward_blocks, backward_blocks = _blocks_of(forward, backward)
    wide = jnp.float64 if arrays["query"].dtype == jnp.float64 else jnp.float32
    score = _functions.NONE
    if isinstance(scale, jax.core.Tracer):
        score_mod, scale = _scaled(op, score_mod, scale, wide), 1.0
    if score_mod is not None:
        score = _mods.trace(op, "score_mod", score_mod, False, sizes, wide, checked)
    masks = []
    if mask_mod is not None:
        masks.append(_mods.trace(op, "mask_mod", mask_mod, True, sizes, checked=checked))
    words = []
    if block_mask is not None:
        block_mask = _check_block_mask(op, block_mask, sizes, arrays)
        words = list(block_mask.words)
        masks += block_mask.kept
    mask = _mods.intersection(masks, checked)

    operands = [(name, array) for name, array in arrays.items() if array is not None]
    if dropout:
        operands.append(("seed", _seed(op, seed)))
    operands += [("block_mask", array) for array in words]
    operands, host = _attention_op.split_host(operands)
    operands += [
        ("dscore" if jnp.issubdtype(array.dtype, jnp.floating) else "score", array)
        for array in score.arrays
    ]
    operands += [("mask", array) for array in mask.arrays]
    labels = [name for name, _ in operands[: len(operands) - len(score.arrays + mask.arrays)]]
    for argument, mod in (("score_mod", score), ("mask_mod", mask)):
        labels += [f"the array `{name}` that {argument} reads" for name in _names(mod)]
    spec = _attention_op.Spec(
        operands=tuple(name for name, _ in operands),
        score_mod=score.text,
        derivative=score.derivative,
        gathers=score.gathers,
        mask_mod=mask.text,
        scale=_scale(op, scale, arrays["query"]),
        causal=causal,
        window=window,
        dropout=dropout,
        bshd=layout == "bshd",
        deterministic=deterministic,
        checked=checked,
        mask_batches=block_mask.shape[0] if words else 1,
        mask_heads=block_mask.shape[1] if words else 1,
        host=host,
        max_scores=return_aux is not None and return_aux.max_scores,
        labels=tuple(labels),
        by_batch=()
        if dropout or score.derivative or arrays["cu_seqlens"] is not None
        else _by_batch(operands, score, mask, arrays["query"].shape[0]),
        forward_blocks=forward_blocks,
        backward_blocks=backward_blocks,
        engine=forward.get("engine", ""),
        precision=forward.get("precision", ""),
        autotune=bool(forward.get("autotune") or backward.get("autotune")),
    )
    with _primitive.reverse_mode_only(op):
        out, lse, *rest = _attention_op.on_mesh(spec, [array for _, array in operands])
    if return_aux is not None:
        return out, AuxOutput(
            lse if return_aux.lse else None,
            jax.lax.stop_gradient(rest[0]) if rest else None,
        )
    return (out, lse) if return_lse else out


def _names(mod):
    """Names of the arrays that a mod reads; some of them may have none."""
    names = mod.names or [""] * len(mod.arrays)
    return [name or str(i) for i, name in enumerate(names)]


def _by_batch(operands, score, mask, batch):
    """(position, dimension) of arrays of mods that hold one entry per batch, such as the document
    ids of each example: they are split along with the batch."""
    found, place = [], len(operands) - len(score.arrays) - len(mask.arrays)
    for mod in (score, mask):
        letters = _core.mod_axes(mod.text) if mod.text else []
        for own, array in zip(letters, mod.arrays, strict=True):
            extents = [array.shape[d] for d, letter in enumerate(own) if letter == "b"]
            if len(extents) == 1 and isinstance(batch, int) and extents[0] == batch:
                found.append((place, own.index("b")))
            place += 1
    return tuple(found)


def _scaled(op, score_mod, scale, dtype):
    """The score mod, applied after multiplying by a traced scale."""
    if scale.shape != () or not jnp.issubdtype(scale.dtype, jnp.number):
        raise TypeError(f"[{op}] expected scale to be a number but got {_type(scale)}")
    scale = scale.astype(dtype)
    if score_mod is None:
        return lambda score, b, h, q_idx, kv_idx: score * scale
    if isinstance(score_mod, _core.Mod):
        score_mod = from_core(score_mod)
    _mods.check(op, "score_mod", score_mod, False)
    return lambda score, b, h, q_idx, kv_idx: score_mod(score * scale, b, h, q_idx, kv_idx)


def _arrays(op, arguments):
    names = ("query", "key", "value", "segment_ids", "kv_segment_ids", "cu_seqlens")
    arrays = {}
    for name in (*names, "kv_cu_seqlens", "kv_lengths", "sinks"):
        value = getattr(arguments, name)
        try:
            arrays[name] = None if value is None else jnp.asarray(value)
        except (TypeError, ValueError):
            raise TypeError(
                f"[{op}] expected {name} to be an array but got {type(value).__name__}"
            ) from None
    return arrays


def _check(op, arrays, layout, enable_gqa):
    """The sizes that mods see; ValueError or TypeError for arrays that do not fit."""
    query = arrays["query"]
    for name in ("query", "key", "value"):
        array = arrays[name]
        if array.ndim != 4:
            raise ValueError(f"[{op}] expected {name} of rank 4 but got {_type(array)}")
        if array.dtype not in _FLOATS:
            raise TypeError(
                f"[{op}] expected {name} of float32, float64, float16 or bfloat16 but got "
                f"{_type(array)}"
            )
        if array.dtype != query.dtype:
            raise TypeError(
                f"[{op}] expected {name} of {query.dtype}, the query's dtype, but got {_type(array)}"
            )
    heads, length = (2, 1) if layout == "bshd" else (1, 2)
    key, value = arrays["key"], arrays["value"]
    if key.shape[0] != query.shape[0] or key.shape[3] != query.shape[3]:
        raise ValueError(
            f"[{op}] expected key with the query's batch and head dimension, {query.shape[0]} and "
            f"{query.shape[3]}, but got {_type(key)}"
        )
    if value.shape[:3] != key.shape[:3]:
        raise ValueError(
            f"[{op}] expected value with the key's batch, heads and length but got {_type(value)} "
            f"and the key {_type(key)}"
        )
    if query.shape[3] == 0 or value.shape[3] == 0:
        raise ValueError(
            f"[{op}] expected head dimensions of at least 1 but got {_type(query)} and the value "
            f"{_type(value)}"
        )
    query_heads, kv_heads = query.shape[heads], key.shape[heads]
    if query_heads != kv_heads and not enable_gqa:
        raise ValueError(
            f"[{op}] expected as many key as query heads without enable_gqa=True but got "
            f"{query_heads} query heads and {kv_heads} key heads"
        )
    if query_heads != kv_heads and (kv_heads == 0 or query_heads % kv_heads):
        raise ValueError(
            f"[{op}] expected query heads to be a multiple of kv heads but got {query_heads} and "
            f"{kv_heads}"
        )
    batch, queries, keys = query.shape[0], query.shape[length], key.shape[length]
    _check_optional(op, arrays, batch, query_heads, queries, keys)
    if arrays["cu_seqlens"] is not None:
        batch = arrays["cu_seqlens"].shape[0] - 1
    return _functions.Sizes(batch, query_heads, queries, keys)


def _check_optional(op, arrays, batch, heads, queries, keys):
    for name, other in (("kv_segment_ids", "segment_ids"), ("kv_cu_seqlens", "cu_seqlens")):
        if arrays[name] is not None and arrays[other] is None:
            raise ValueError(f"[{op}] expected {other} with {name} but got none")
    if arrays["segment_ids"] is not None and arrays["kv_segment_ids"] is None and queries != keys:
        raise ValueError(
            f"[{op}] expected kv_segment_ids with segment_ids where lengths differ, {queries} and "
            f"{keys}, but got none"
        )
    starts = arrays["cu_seqlens"]
    shapes = {
        "segment_ids": (batch, queries),
        "kv_segment_ids": (batch, keys),
        "kv_lengths": (batch if starts is None else max(starts.size - 1, 0),),
        "sinks": (heads,),
    }
    for name, shape in shapes.items():
        if arrays[name] is not None and arrays[name].shape != shape:
            raise ValueError(
                f"[{op}] expected {name} of shape {shape} but got {_type(arrays[name])}"
            )
    for name in ("segment_ids", "kv_segment_ids", "cu_seqlens", "kv_cu_seqlens", "kv_lengths"):
        array = arrays[name]
        if array is not None and not jnp.issubdtype(array.dtype, jnp.integer):
            raise TypeError(f"[{op}] expected {name} of integers but got {_type(array)}")
        if array is not None and "cu_" in name and (array.ndim != 1 or array.shape[0] < 2):
            raise ValueError(f"[{op}] expected {name} of N + 1 integers but got {_type(array)}")
    if arrays["cu_seqlens"] is not None and batch != 1:
        raise ValueError(f"[{op}] expected a batch of 1 with cu_seqlens but got {batch}")
    sinks = arrays["sinks"]
    if sinks is not None and sinks.dtype not in _FLOATS:
        raise TypeError(f"[{op}] expected sinks of floats but got {_type(sinks)}")


def _check_block_mask(op, block_mask, sizes, arrays):
    if isinstance(block_mask, _numpy_block_mask.BlockMask):
        block_mask = wrap(block_mask)
    if not isinstance(block_mask, BlockMask):
        raise TypeError(
            f"[{op}] expected block_mask to be a BlockMask of tilewright.jax but got "
            f"{type(block_mask).__name__}"
        )
    block_mask.check_fits(op, sizes.batch, sizes.heads)
    batch, heads, queries, keys = block_mask.shape
    batches = 1 if arrays["cu_seqlens"] is not None else sizes.batch
    if (queries, keys) != (sizes.queries, sizes.keys):
        raise ValueError(
            f"[{op}] expected a block mask of {sizes.queries} queries and {sizes.keys} keys but got "
            f"{queries} and {keys}"
        )
    if batch not in (1, batches) or heads not in (1, sizes.heads):
        raise ValueError(
            f"[{op}] expected a block mask with the batches and heads of query, {batches} and "
            f"{sizes.heads}, or 1 of either, but got {batch} and {heads}"
        )
    return block_mask


def _type(array):
    return f"{array.dtype}{list(array.shape)}"


def _flag(op, name, value):
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"[{op}] expected {name} to be a bool known when the function is traced but got a "
            "traced value"
        )
    return bool(value)


def _number(op, name, value):
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"[{op}] expected {name} to be a number known when the function is traced but got a "
            "traced value"
        )
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"[{op}] expected {name} to be a number but got {value!r}") from None


def _scale(op, scale, query):
    if scale is None:
        return 1 / math.sqrt(max(query.shape[-1], 1))
    scale = _number(op, "scale", scale)
    if not math.isfinite(scale):
        raise ValueError(f"[{op}] expected a finite scale but got {scale}")
    return scale


def _dropout(op, dropout):
    dropout = _number(op, "dropout", dropout)
    if not 0 <= dropout < 1:
        raise ValueError(f"[{op}] expected dropout in [0, 1) but got {dropout}")
    return dropout


def _window(op, arguments):
    left, right = arguments.window_bounds(op)
    if left < -1 or right < -1:
        raise ValueError(f"[{op}] expected window bounds of at least -1 but got {(left, right)}")
    unbounded = 1 << 62  # more than positions can be apart
    return min(left, unbounded), min(right, unbounded)


def _seed(op, seed):
    """The seed as two words, low half first."""
    if isinstance(seed, int | np.integer):
        bits = int(seed) % (1 << 64)
        return jnp.array([bits & 0xFFFFFFFF, bits >> 32], jnp.uint32)
    try:
        seed = jnp.asarray(seed)
    except (TypeError, ValueError):
        raise TypeError(f"[{op}] expected seed to be an integer scalar but got {seed!r}") from None
    if seed.shape != () or not jnp.issubdtype(seed.dtype, jnp.integer):
        raise TypeError(f"[{op}] expected seed to be an integer scalar but got {_type(seed)}")
    if seed.dtype.itemsize < 8:
        wide = seed.astype(jnp.uint32)
        high = jnp.where(seed < 0, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
        return jnp.stack([wide, high])
    return jax.lax.bitcast_convert_type(seed.astype(jnp.uint64), jnp.uint32)
