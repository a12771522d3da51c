"""flex_attention on torch tensors."""

import warnings

import torch
from torch.autograd import forward_ad as _forward_ad
from torch.nn.attention import flex_attention as _flex
from torch.utils import _pytree

from .. import _attention as _numpy_attention
from .. import _core, _functions
from .._memo import Memo
from . import _block_mask as _masks
from . import (
    _environment,
    _errors,
    _function,
    _host_copies,
    _nested,
    _ops,
    _options,
    _plans,
    _scales,
    _sharded,
    _sites,
)

# torch.export.save writes the names of types that a program returns, and torch gives this one none.
if _flex.AuxOutput not in _pytree.SUPPORTED_NODES:
    _pytree._register_namedtuple(
        _flex.AuxOutput, serialized_type_name=f"{_flex.__name__}.AuxOutput"
    )

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_OPTIONS = (type(None), dict)
_is_compiling = torch.compiler.is_dynamo_compiling
_autocast = torch._C._is_any_autocast_enabled
_deterministic = torch._C._get_deterministic_algorithms
_grad_enabled = torch.is_grad_enabled
_is_tracing = torch._C._is_tracing  # by torch.jit

#: Earlier calls without their tensors: a call like one of them runs without Python code.
_known_calls = _core.KnownCalls(
    (
        torch._C._len_torch_dispatch_stack,
        torch._C._functorch.peek_interpreter_stack,
        _autocast,
        _grad_enabled,
        _deterministic,
        _is_tracing,
    ),
    _function.apply_plain,
    _ops.fused,
    _masks.BlockMask,
)
_known_call = _known_calls.entry()


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
    dropout=0,  # with 0.0, Dynamo would compile twice under dynamic=True
    seed=0,
    layout="bhsd",
    deterministic=True,
    device=None,
):
    """``softmax(mask(score_mod(scale * Q K^T))) V`` in one pass, in memory O(L + S).

    Arguments up to return_aux are those of `torch.nn.attention.flex_attention.flex_attention`,
    which this function replaces, on the CPU and on CUDA, with gradients on both. Shapes, for layout
    "bhsd" ("bshd": sequence before heads): query (B, Hq, L, E), key (B, Hkv, S, E), value
    (B, Hkv, S, Ev), of float32, float64, float16 or bfloat16, any strides. If dtypes differ, the
    widest is computed in and the output has the query's; float8 keys and values are converted to
    the query's dtype.

    score_mod(score, b, h, q_idx, kv_idx) and mask_mod(b, h, q_idx, kv_idx) are torch functions of
    scalars, or objects of `scores` and `masks`; tensors that score_mod reads have gradients.
    block_mask: a BlockMask of this module, of torch or of tilewright. causal: kv <= q;
    window=(left, right): q - left <= kv <= q + right, -1 is unbounded; segment_ids (B, L),
    kv_segment_ids (B, S): only equal ids attend. Several masks are intersected.

    cu_seqlens (N + 1,) int32: N sequences packed in a batch of 1; positions seen by mods restart.
    kv_lengths (B,), or (N,) with cu_seqlens: keys from there on are ignored, whatever the tensors
    hold. sinks (Hq,): one more logit per head in the denominator. dropout: the fraction of
    probabilities dropped by philox(seed, b, h, q, kv). kernel_options: torch's names, taken as
    hints; checked=True runs in the checked mode, deterministic=False allows sums in any order.

    Returns out (B, Hq, L, Ev) in the order of the query's strides; with return_lse=True (out, lse);
    with return_aux=AuxRequest(...) (out, AuxOutput). lse (a natural logarithm) and max_scores are
    float32, or float64 for float64. A row with nothing to attend to gives out 0 and lse -inf.
    Differentiable once. Errors about arguments are both ValueError and RuntimeError; TypeError and
    NotImplementedError if a type does not fit.
    """
    if device is not None:
        _options.check_device("flex_attention", query, device)
        device = None
    if _is_compiling():
        from . import _marker

        return _marker.flex_attention(
            *(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse),
            *(kernel_options, return_aux, mask_mod, causal, window, segment_ids, kv_segment_ids),
            *(cu_seqlens, kv_cu_seqlens, kv_lengths, sinks, dropout, seed, layout),
            deterministic,
        )
    has_extras = not (
        segment_ids is kv_segment_ids is cu_seqlens is kv_cu_seqlens is kv_lengths is sinks is None
    )
    forward_mode = _forward_ad._current_level >= 0  # known calls do not check for tangents
    results = None if forward_mode else _known_call(
        query, key, value, score_mod, mask_mod, block_mask, kernel_options, has_extras, scale,
        enable_gqa, return_lse, return_aux, causal, window, dropout, layout, deterministic, device,
    )  # fmt: skip
    if results is not None:
        return _returned(results, return_lse, return_aux) if type(results) is tuple else results
    if _is_tracing():
        raise NotImplementedError(
            "[flex_attention] expected no torch.jit.trace, which does not record the call: use "
            "torch.export or torch.compile"
        )
    nested = getattr(query, "is_nested", False)
    if nested or is_mixed(query, key, value):
        return (_nested.flex_attention if nested else _mixed)(
            *(flex_attention, query, key, value),
            {
                "score_mod": score_mod,
                "block_mask": block_mask,
                "scale": scale,
                "enable_gqa": enable_gqa,
                "return_lse": return_lse,
                "kernel_options": kernel_options,
                "return_aux": return_aux,
                "mask_mod": mask_mod,
                "causal": causal,
                "window": window,
                "segment_ids": segment_ids,
                "kv_segment_ids": kv_segment_ids,
                "cu_seqlens": cu_seqlens,
                "kv_cu_seqlens": kv_cu_seqlens,
                "kv_lengths": kv_lengths,
                "sinks": sinks,
                "dropout": dropout,
                "seed": seed,
                "layout": layout,
                "deterministic": deterministic,
                "device": device,
            },
        )
    if type(layout) is not str or type(kernel_options) not in _OPTIONS:
        _options.check_types("flex_attention", layout, kernel_options)
    if window is not None and type(window) is not tuple:  # calls are found by it
        window = _options.window_of("flex_attention", window)
    if not isinstance(query, torch.Tensor):  # arrays of NumPy have a shape and a device, too
        _sites.check_inputs("flex_attention", query, key, value, layout == "bshd", enable_gqa)
    try:
        batch, heads, queries, _ = query.shape
        keys = key.shape[2]
        tensor_device = query.device
    except (AttributeError, ValueError, IndexError):
        _sites.check_inputs("flex_attention", query, key, value, layout == "bshd", enable_gqa)
        raise
    if _autocast():
        query, key, value = _cast(query, key, value)
    others, names = (), ()
    if layout != "bhsd":
        queries, heads, keys = heads, queries, key.shape[1]
    if has_extras:
        extras = (segment_ids, kv_segment_ids, cu_seqlens, kv_cu_seqlens, kv_lengths, sinks)
        names, others = _given(extras)
        if cu_seqlens is not None:
            batch = len(cu_seqlens) - 1

    if block_mask is not None and cu_seqlens is None:
        given = block_mask
        block_mask, mask_mod = _masks.as_mod(given, mask_mod)
        if block_mask is not given:
            _sites.check_mask("flex_attention", given.shape, batch, heads, queries, keys)
    if scale is not None:
        score_mod, scale = _scales.with_operand(score_mod, mask_mod, scale, query)
    score = mask = _functions.NONE
    checked = _core.checked()
    if kernel_options:
        checked = checked or bool(kernel_options.get("checked"))
    if score_mod is not None:
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        score = _environment.traced(
            *("flex_attention", "score_mod", score_mod, False),
            _functions.Sizes(batch, heads, queries, keys),
            *(wide, tensor_device, checked),
        )
        others = (*others, *score.arrays)
    if mask_mod is not None:
        mask = _environment.traced(
            *("flex_attention", "mask_mod", mask_mod, True),
            _functions.Sizes(batch, heads, queries, keys),
            *(torch.float32, tensor_device, checked),
        )
        others = (*others, *mask.arrays)
    if block_mask is not None:
        block_mask = _exact_mask(block_mask, batch, heads)
        if block_mask is not None and len(key) != len(query):
            key, value = _broadcast_batch(query, key, value, block_mask)

    operands = (query, key, value, *others)
    grad = False
    if _grad_enabled():
        try:
            for x in operands:
                if x.requires_grad:
                    grad = True
                    break
        except AttributeError:  # arrays of another library
            _sites.check_inputs("flex_attention", query, key, value, layout == "bshd", enable_gqa)
            raise
    if grad and mask.arrays:
        check_mask_captures("flex_attention", mask)
    # ``1 == True == 1.0``, but each of them is checked the first time.
    choice = (
        names,
        score.text,
        score.derivative,
        score.gathers,
        mask.text,
        tuple([x.requires_grad for x in score.arrays]) if grad else None,
        scale,
        enable_gqa,
        return_lse,
        return_aux,
        causal,
        window,
        dropout,
        layout,
        deterministic,
        device,
        _deterministic(),
    )
    try:
        found = None if kernel_options else _choices.find(choice)
    except TypeError:  # a list in place of a tuple
        found = None
    if found is None:
        found = _choose(choice, locals())
    seed = _options.seed_of(seed) if dropout else 0
    plain = _ops.is_plain()
    known = not (has_extras or dropout or kernel_options or checked)
    if known and plain and _choices.find(choice) is found:
        _remember(found, choice, (score_mod, mask_mod), (score, mask), grad, query)
    if any([type(x) not in _TENSORS for x in operands]) and _sharded.is_sharded(operands):
        results = _sharded.run(found, block_mask, seed, operands)
        return _returned(results, return_lse, return_aux)
    if not plain:
        found.check(block_mask, operands)  # while shapes are still the caller's
        results = _function.Attention.apply(found, block_mask, seed, *operands)
    elif grad:
        if return_aux is None and not return_lse:
            return _function.apply_alone(found, block_mask, seed, operands)
        results = _function.apply_plain((found, block_mask, seed, False), *operands)
    else:
        wants_lse = return_lse or return_aux is not None
        results = _ops.run_plain(found, operands, block_mask, seed, wants_lse)
    if return_aux is None and not return_lse:
        return results[0]
    return _returned(results, return_lse, return_aux)


def _returned(results, return_lse, return_aux):
    if return_aux is not None:
        return results[0], _flex.AuxOutput(
            results[1] if return_aux.lse else None,
            results[2] if return_aux.max_scores else None,
        )
    if return_lse:
        _warn_return_lse()
        return results[0], results[1]
    return results[0]


_choices = Memo("kinds of calls of flex_attention", 4096)


def _choose(choice, arguments):
    """The site of a call whose arguments, apart from tensors, are new."""
    spec = spec_of("flex_attention", **{name: arguments[name] for name in _CHOICES})
    site = _sites.site(spec)
    plain = (arguments[name] for name in ("scale", "causal", "enable_gqa", "return_lse", "dropout"))
    window = () if arguments["window"] is None else arguments["window"]
    # A tensor would be kept by identity, not by value.
    if (
        not arguments["kernel_options"]
        and all(type(x) in _PLAIN for x in (*plain, *window))
        and type(window) is tuple
    ):
        _choices.put(choice, site)
    return site


def _remember(site, choice, functions, mods, grad, query):
    """Lets `_known_calls` find calls like this one, if plans tell what the mods read."""
    is_double = query.dtype == torch.float64
    known = [
        _plans.known_mod(function, is_mask, is_double and not is_mask)
        for function, is_mask in zip(functions, (False, True), strict=True)
    ]
    if None in known:
        return
    options = choice[6:-1]  # from scale on
    wants_lse = grad or choice[8] or choice[9] is not None
    _known_calls.remember(
        options=options,
        deterministic=choice[-1],
        is_double=is_double,
        score=known[0],
        mask=known[1],
        captures_require_grad=any(x.requires_grad for mod in mods for x in mod.arrays),
        gradient=grad,
        dropout=site.fused_dropout if grad and _ops.fused else None,
        site=site if wants_lse else site.alone,
    )


_PLAIN = (type(None), bool, int, float)


_CHOICES = (
    *("names", "score", "mask", "grad", "scale", "enable_gqa", "return_lse", "return_aux"),
    *("kernel_options", "causal", "window", "dropout", "layout", "deterministic"),
)


def check_mask_captures(op, mask):
    if any(x.requires_grad for x in mask.arrays):
        raise AssertionError(
            f"[{op}] expected tensors that mask_mod captures not to require gradients: a mask has "
            "none"
        )


def spec_of(
    op,
    *,
    names,
    score,
    mask,
    grad,
    scale,
    enable_gqa,
    return_lse,
    return_aux,
    kernel_options,
    causal,
    window,
    dropout,
    layout,
    deterministic,
    block_size=None,
):
    """The spec of a call; BadInput or TypeError for arguments that do not fit."""
    _options.check_types(op, layout, kernel_options)
    if _options.flag(op, "return_lse", return_lse) and return_aux is not None:
        raise _errors.BadInput(
            f"[{op}] Cannot specify both return_lse and return_aux. return_lse is deprecated, "
            "please use return_aux=AuxRequest(lse=True) instead."
        )
    if return_aux is not None and not isinstance(
        return_aux, _flex.AuxRequest | _numpy_attention.AuxRequest
    ):
        raise TypeError(
            f"[{op}] expected return_aux to be an AuxRequest but got {type(return_aux).__name__}"
        )
    options, flags = _options.kernel_options_of(op, kernel_options)
    kinds = ["dscore" if grad and _has_gradient(x) else "score" for x in score.arrays]
    return _sites.Spec(
        operands=(*names, *kinds, *["mask"] * len(mask.arrays)),
        score_mod=score.text,
        derivative=score.derivative,
        gathers=score.gathers,
        mask_mod=mask.text,
        scale=None if scale is None else _options.number(op, "scale", scale),
        enable_gqa=_options.flag(op, "enable_gqa", enable_gqa),
        causal=_options.flag(op, "causal", causal),
        window=_options.window_of(op, window),
        dropout=_options.dropout_of(op, dropout),
        bshd=layout == "bshd",
        deterministic=(_options.flag(op, "deterministic", deterministic) and flags["deterministic"])
        or torch.are_deterministic_algorithms_enabled(),
        checked=flags["checked"],
        max_scores=return_aux is not None and bool(return_aux.max_scores),
        gradient=grad,
        block_size=block_size,
        **options,
    )


def _has_gradient(x):
    return x.dtype.is_floating_point and x.requires_grad


_STARTS = ("cu_seqlens", "kv_cu_seqlens")
_EXTRAS = ("segment_ids", "kv_segment_ids", "cu_seqlens", "kv_cu_seqlens", "kv_lengths", "sinks")


def _given(extras):
    """Names and tensors of the extras that are given."""
    pairs = [(name, x) for name, x in zip(_EXTRAS, extras, strict=True) if x is not None]
    for name, x in pairs:
        if not isinstance(x, torch.Tensor):
            raise TypeError(
                f"[flex_attention] expected {name} to be a tensor but got {type(x).__name__}"
            )
    plain = _ops.is_plain()
    return tuple(name for name, _ in pairs), tuple(
        _host_copies.host_copy(x) if plain and name in _STARTS else x for name, x in pairs
    )


def _exact_mask(block_mask, batch, heads):
    """The mask in its exact form, with `_core`; None if torch's empty mask stands for none."""
    if isinstance(block_mask, _masks.BlockMask) and block_mask._core is not None:
        return block_mask
    return _masks.exact("flex_attention", block_mask, batch, heads)


_NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)


def is_mixed(query, key, value):
    """Whether they are tensors of different float dtypes, which torch allows."""
    try:
        dtype = query.dtype
        if key.dtype is dtype and value.dtype is dtype:
            return False
        kinds = (*_sites.FLOATS, *_NARROW)
        return dtype in _sites.FLOATS and key.dtype in kinds and value.dtype in kinds
    except AttributeError:
        return False


def one_dtype(query, key, value):
    """Converts all to the widest of their dtypes; float8 counts as the query's."""
    dtype = query.dtype
    for x in (key, value):
        if x.dtype not in _NARROW:
            dtype = torch.promote_types(dtype, x.dtype)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def _mixed(attention, query, key, value, options):
    """`attention`, with an output of the query's dtype."""
    if _autocast():
        wide = _cast(query, key, value)
        if not is_mixed(*wide):
            return attention(*wide, **options)
        query, key, value = wide
    result = attention(*one_dtype(query, key, value), **options)
    if isinstance(result, torch.Tensor):
        return result.to(query.dtype)
    return result[0].to(query.dtype), result[1]


def _broadcast_batch(query, key, value, block_mask):
    """Expands keys and values with a batch of 1 to the queries', which torch allows with a mask."""
    batch = len(query)
    if len(key) == 1 and len(value) == 1 and block_mask.shape[0] == batch:
        key, value = (x.expand(batch, *x.shape[1:]) for x in (key, value))
    return key, value


def _cast(*tensors):
    """Casts tensors as torch's matrix products do under autocast."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors
    )


def _warn_return_lse():
    warned = _flex._WARNINGS_SHOWN
    if "deprecated_return_lse" not in warned:
        warned.add("deprecated_return_lse")
        warnings.warn(
            "return_lse is deprecated and will be removed in v2.10. Please use "
            "return_aux=AuxRequest(lse=True) instead.",
            FutureWarning,
            stacklevel=4,
        )
