"""torch.compile: an operator whose mods Dynamo turns into graphs.

Dynamo has one way to pass a function with captured tensors to an operator: that of torch's own
flex_attention. The operator here is entered in Dynamo's table under the same class, so that Dynamo
traces score_mod and mask_mod, lifts the tensors and numbers of their closures, and calls it with
graphs. It records these as text and calls the library's operators; a backend sees only those.

Imported by the first compiled call; the only file that uses private names of Dynamo.
"""

import math
import re
import weakref

import torch
import torch._dynamo
from torch._dynamo.variables import higher_order_ops as _dynamo
from torch._guards import TracingContext
from torch.nn.attention.flex_attention import (
    _LARGE_SPARSE_BLOCK_SIZE,
    AuxOutput,
    _identity,
    noop_mask,
)

from .. import _core, _functions
from .._memo import Memo
from . import (
    _attention,
    _block_mask,
    _errors,
    _function,
    _mods,
    _nested,
    _norm,
    _ops,
    _sharded,
    _sites,
)

_VERSION = str(_core.version)
_ANY = 1 << 31  # stands for an unknown size
_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


class _Marker(torch._ops.HigherOrderOperator):
    def __init__(self, name, base):
        super().__init__(name, cacheable=True)
        self._base = base  # of the logarithms that it returns

    def __call__(
        self,
        query,
        key,
        value,
        score_mod,
        block_mask,
        scale,
        options,
        score_args=(),
        mask_args=(),
    ):
        """out, lse and max_scores.

        block_mask: (mask_mod,), or torch's BlockMask as a tuple, whose mask_mod decides within
        partial blocks. options: further arguments of `flex_attention`, or torch's kernel_options.
        """
        ours = options.get("tilewright", {})
        op = "flex_attention"
        names, others = tuple(ours.get("names", ())), tuple(ours.get("tensors", ()))
        *lists, mask_mod = block_mask
        layout = ours.get("layout", "bhsd")
        dtype = query.dtype
        if _attention.is_mixed(query, key, value):
            query, key, value = _attention.one_dtype(query, key, value)
        heads, length = (2, 1) if layout == "bshd" else (1, 2)
        _sites.check_inputs(op, query, key, value, layout == "bshd", True)
        batch = query.shape[0]
        if "cu_seqlens" in names:
            batch = others[names.index("cu_seqlens")].shape[0] - 1
        sizes = (batch, query.shape[heads], query.shape[length], key.shape[length])
        bounds = _functions.Sizes(*(n if type(n) is int else _ANY for n in sizes))
        if lists:
            list_names, list_tensors, block_size = _lists(lists)
            names, others = (*names, *list_names), (*others, *list_tensors)
        else:
            block_size = None

        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        device = query.device
        score = _record(op, "score_mod", score_mod, score_args, False, bounds, wide, device)
        mask = _record(op, "mask_mod", mask_mod, mask_args, True, bounds, torch.float32, device)
        others = (*others, *score.arrays, *mask.arrays)
        operands = (query, key, value, *others)
        grad = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
        if grad:
            _attention.check_mask_captures(op, mask)
        spec = _attention.spec_of(
            op,
            names=names,
            score=score,
            mask=mask,
            grad=grad,
            scale=scale,
            enable_gqa=ours.get("enable_gqa", True),
            return_lse=False,
            return_aux=_attention._flex.AuxRequest(True, ours.get("max_scores", True)),
            kernel_options=dict(ours["kernel_options"]) if ours else _public(options),
            causal=ours.get("causal", False),
            window=ours.get("window"),
            dropout=ours.get("dropout", 0.0),
            layout=layout,
            deterministic=ours.get("deterministic", True),
            block_size=block_size,
        )
        site, seed = _sites.site(spec), ours.get("seed", 0)
        if _sharded.is_sharded(operands):
            results = _sharded.run(site, None, seed, operands)
        elif grad or ours.get("lse", True) or _ops.is_transformed():
            results = _function.Attention.apply(site, None, seed, *operands)
        else:
            results = _ops.run(site.alone, operands, None, seed)
        out, *rest = results
        lse = rest.pop(0) if rest else out.new_empty(0)  # never read
        out = out if out.dtype == dtype else out.to(dtype)
        max_scores = rest[0] if rest else lse.new_empty(0)
        if self._base == 2:
            return out, lse / math.log(2), max_scores / math.log(2)
        return out, lse, max_scores


def _lists(block_mask):
    """Names and tensors of torch's lists, and the block size; empty for a mask of one block."""
    kv_num_blocks, kv_indices, full_num_blocks, full_indices = block_mask[2:6]
    block_size = tuple(map(int, block_mask[-2:]))
    if block_size == (_LARGE_SPARSE_BLOCK_SIZE, _LARGE_SPARSE_BLOCK_SIZE):
        return (), (), None
    tensors = (kv_num_blocks, kv_indices, full_num_blocks, full_indices)
    pairs = [(n, x) for n, x in zip(_LISTS, tensors, strict=True) if x is not None]
    return tuple(n for n, _ in pairs), tuple(x for _, x in pairs), block_size


_trivial = {}


def _record(op, argument, graph, lifted, is_mask, sizes, dtype, device):
    # Numbers that Dynamo lifted count as 0-d tensors.
    lifted = [
        x if isinstance(x, torch.Tensor) else torch.full((), x, device=device, dtype=_dtype(x))
        for x in lifted
    ]

    def mod(*scalars):
        return graph(*scalars, *lifted)

    traced = _kept(graph, lifted, is_mask, dtype, device)
    if traced is None:
        traced = _mods.record(op, argument, mod, is_mask, sizes, dtype, device)
        _keep(graph, lifted, is_mask, dtype, device, traced)
    if traced.arrays:
        return traced
    key = is_mask, dtype
    if key not in _trivial:
        plain = noop_mask if is_mask else _identity
        _trivial[key] = _mods.record(
            op, argument, plain, is_mask, sizes, dtype, torch.device("cpu")
        ).text
    return _functions.NONE if traced.text == _trivial[key] else traced


# Where nothing traces, as under the backend "eager", every call has the same graph: `_key` -> the
# recording, and for each of its arrays the place among what Dynamo lifted.
_recordings = Memo('recordings of mods under backend="eager"', 1024)


def _key(graph, lifted, is_mask, dtype, device):
    """A weak reference to the graph, and what its recordings depend on; None unless the tensors are
    plain ones."""
    if not _ops.is_plain() or any(type(x) not in _attention._TENSORS for x in lifted):
        return None
    tensors = [(x.dtype, x.device, x.shape, x.requires_grad) for x in lifted]
    return weakref.ref(graph), is_mask, dtype, device, *tensors


def _kept(graph, lifted, is_mask, dtype, device):
    """The recording of an earlier call on tensors like these; None without one."""
    key = _key(graph, lifted, is_mask, dtype, device)
    found = key and _recordings.find(key)
    if not found:
        return None
    traced, places = found
    return traced._replace(arrays=tuple([lifted[i] for i in places]))


def _keep(graph, lifted, is_mask, dtype, device, traced):
    key = _key(graph, lifted, is_mask, dtype, device)
    place_of = {id(x): i for i, x in enumerate(lifted)}
    places = [place_of.get(id(x)) for x in traced.arrays]
    if key is not None and len(place_of) == len(lifted) and None not in places:
        _recordings.put(key, (traced._replace(arrays=()), places))


def _dtype(number):
    return torch.float64 if isinstance(number, float | torch.SymFloat) else torch.int64


def _public(options):
    """torch's kernel options without those that it adds itself."""
    return {k: v for k, v in options.items() if not k.startswith("OUTPUT_")}


marker = _Marker("tilewright_flex_attention", math.e)
#: Replaces torch's own operator, whose logarithms are to base 2.
base2_marker = _Marker("tilewright_flex_attention_base2", 2)


def _register():
    table = getattr(_dynamo, "_hop_name_to_variable_class", None)
    variable = getattr(_dynamo, "FlexAttentionHigherOrderVariable", None)
    if table is None or variable is None:
        raise ImportError(
            "[tilewright.torch] expected torch._dynamo to have _hop_name_to_variable_class and "
            f"FlexAttentionHigherOrderVariable, but torch {torch.__version__} has not: "
            "flex_attention cannot be compiled; call it outside of torch.compile, or under "
            "torch.compiler.disable"
        )

    class Variable(variable):
        """The same without guards on what does not change: a guard costs about 50 ns a call."""

        def call_function(self, tx, args, kwargs):
            held = TracingContext.get().guards_context.dynamo_guards
            before = set(getattr(held, "inner", ()))
            result = super().call_function(tx, args, kwargs)
            guards = getattr(held, "inner", set())  # it may be another set now
            for guard in list(guards):
                new = guard not in before  # by how Dynamo itself flattens what a mod takes
                path = _path(guard)
                of_torch = path == "__import__('torch')" or "torch.utils._pytree" in path
                if _is_of_front_end(guard, tx) or (new and of_torch):
                    guards.discard(guard)
            return result

    table[marker._name] = Variable
    # torch's flex_attention calls this one while `install` is in effect, which guards tell.
    table[base2_marker._name] = variable


def _path(guard):
    """What a guard reads, with modules under their own names."""
    name = str(guard.name).replace("__import__('torch').", "torch.")
    return re.sub(r"G\['__import_(\w+)'\]", lambda m: m[1].replace("_dot_", "."), name)


def _is_of_front_end(guard, tx):
    """Whether a guard reads a module of this package, or a default of its flex_attention."""
    path = _path(guard)
    if path.startswith("tilewright.torch"):
        return True
    function = re.match(r"(.*)\.__(?:kw)?defaults__", path)
    if function is None:
        return False
    scope = {"G": tx.output.global_scope, "L": tx.output.local_scope}
    try:
        return eval(function[1], scope) is _attention.flex_attention
    except Exception:  # a guard on something else, which stays
        return False


_register()
_block_mask.use_words()

#: A Function around an operator, which Dynamo leaves to later stages.
norm = torch.compiler.allow_in_graph(_norm.apply)


def flex_attention(
    query,
    key,
    value,
    score_mod,
    block_mask,
    scale,
    enable_gqa,
    return_lse,
    kernel_options,
    return_aux,
    mask_mod,
    causal,
    window,
    segment_ids,
    kv_segment_ids,
    cu_seqlens,
    kv_cu_seqlens,
    kv_lengths,
    sinks,
    dropout,
    seed,
    layout,
    deterministic,
):
    """What Dynamo traces in place of `_attention.flex_attention`."""
    op = "flex_attention"
    if return_lse and return_aux is not None:
        raise _errors.BadInput(
            f"[{op}] Cannot specify both return_lse and return_aux. return_lse is deprecated, "
            "please use return_aux=AuxRequest(lse=True) instead."
        )
    if query.is_nested:
        return _nested.flex_attention(
            *(_attention.flex_attention, query, key, value),
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
            },
        )
    query, key, value = _attention._cast(query, key, value)
    names, tensors = [], []
    for name, x in (
        ("segment_ids", segment_ids),
        ("kv_segment_ids", kv_segment_ids),
        ("cu_seqlens", cu_seqlens),
        ("kv_cu_seqlens", kv_cu_seqlens),
        ("kv_lengths", kv_lengths),
        ("sinks", sinks),
    ):
        if x is not None:
            names.append(name)
            tensors.append(x)
    if isinstance(seed, torch.Tensor):
        names.append("seed")
        tensors.append(_halves(seed))
        seed = 0
    if score_mod is None:
        score_mod = _identity
    plain_mask = noop_mask if mask_mod is None else mask_mod
    lists = (plain_mask,)
    if block_mask is not None and min(block_mask.BLOCK_SIZE) >= _LARGE_SPARSE_BLOCK_SIZE:
        block_mask = None  # torch's empty mask, which fits any length
    if block_mask is not None:
        heads = 2 if layout == "bshd" else 1
        _sites.check_mask(
            op,
            block_mask.shape,
            1 if cu_seqlens is not None else query.shape[0],
            query.shape[heads],
            query.shape[3 - heads],
            key.shape[3 - heads],
        )
        if key.shape[0] != query.shape[0]:
            key, value = _attention._broadcast_batch(query, key, value, block_mask)
        if getattr(block_mask, "words", None) is not None:
            names.append("block_mask")
            tensors.append(block_mask.words)
        else:
            lists = (
                *block_mask.seq_lengths,
                block_mask.kv_num_blocks,
                block_mask.kv_indices,
                block_mask.full_kv_num_blocks,
                block_mask.full_kv_indices,
                *block_mask.BLOCK_SIZE,
                block_mask.mask_mod,
            )
            if mask_mod is not None:
                score_mod = _masked(score_mod, mask_mod)
    options = {
        "tilewright": {
            "names": tuple(names),
            "tensors": tuple(tensors),
            "enable_gqa": enable_gqa,
            "kernel_options": {} if kernel_options is None else kernel_options,
            "max_scores": return_aux is not None and return_aux.max_scores,
            "lse": return_lse or (return_aux is not None and return_aux.lse),
            "causal": causal,
            "window": window,
            "dropout": dropout,
            "seed": seed,
            "layout": layout,
            "deterministic": deterministic,
            # PyTorch keys its disk cache of graphs by these; the graphs hold this version's texts.
            "version": _VERSION,
        }
    }
    out, lse, max_scores = marker(query, key, value, score_mod, lists, scale, options)
    if return_aux is not None:
        return out, AuxOutput(
            lse if return_aux.lse else None, max_scores if return_aux.max_scores else None
        )
    return (out, lse) if return_lse else out


def _halves(seed):
    """A seed in a tensor as int32 (2) on the CPU, low half first."""
    if seed.numel() == 2:
        return seed
    seed = seed.reshape(()).to("cpu", torch.int64)
    return torch.stack([seed, seed >> 32]).to(torch.int32)


def _masked(score_mod, mask_mod):
    """A score mod that is -inf where the mask is false."""

    def masked(score, b, h, q_idx, kv_idx):
        kept = score_mod(score, b, h, q_idx, kv_idx)
        return torch.where(mask_mod(b, h, q_idx, kv_idx), kept, -float("inf"))

    return masked
