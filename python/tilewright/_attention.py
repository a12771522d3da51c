"""flex_attention and its pullback."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._arguments import AttentionArguments, AuxRequest
from ._arrays import (
    Array,
    flag,
    number,
    shown_fields,
    stream_of,
    to_array,
    to_device,
    to_tensor,
)
from ._block_mask import BlockMask
from ._changes import Unchanged, captured
from ._mods import ModLike, as_mod
from ._synonyms import names_synonyms


class AuxOutput(NamedTuple):
    """Auxiliary results; None for those that were not requested."""

    lse: np.ndarray | None = None  #: (B, Hq, L), natural log of the softmax's denominator
    max_scores: np.ndarray | None = None  #: (B, Hq, L), of the scores after mods and masks

    def __repr__(self) -> str:
        return shown_fields(self)


class Gradients(NamedTuple):
    """What the pullback of `flex_attention_vjp` returns."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    sinks: np.ndarray | None  #: None without sinks
    captured: list  #: of the float captures, in the order in which score_mod first uses them

    def __repr__(self) -> str:
        return shown_fields(self)


_SIZES = {
    *("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2", "SPLIT_KV"),
    *("PARTITION_SIZE", "num_warps"),
}
_COUNTS = {"num_stages", "kpack", "matrix_instr_nonkdim", "waves_per_eu"}
_FLAGS = {
    *("PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS", "WRITE_DQ", "USE_TMA"),
    *("FORCE_USE_FLEX_ATTENTION", "SKIP_MASK_SCORE", "autotune"),
}
_WORDS = {"BACKEND", "engine", "precision"}
_ENGINES = ("", "tiles", "sm90")
_PRECISIONS = ("", "ieee", "tf32", "bf16x3")
_OPTIONS = sorted(_SIZES | _COUNTS | _FLAGS | _WORDS)


def kernel_options_of(op, options):
    """Checks kernel_options; returns {name: value} for the forward and for the backward pass.

    A prefix fwd_ or bwd_ limits an option to one pass, and overrides the same name without one.
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(
            f"[{op}] expected kernel_options to be a dict but got {type(options).__name__}"
        )
    forward, backward = {}, {}
    for name, value in sorted((options or {}).items(), key=lambda item: "wd_" in item[0]):
        plain = name.removeprefix("fwd_").removeprefix("bwd_")
        if plain not in _OPTIONS:
            raise ValueError(
                f"[{op}] expected kernel_options of {', '.join(_OPTIONS)} but got {name!r}"
            )
        value = _option(op, name, plain, value)
        if not name.startswith("bwd_"):
            forward[plain] = value
        if not name.startswith("fwd_"):
            backward[plain] = value
    engine = forward.get("engine", "")
    if engine not in _ENGINES:
        names = " or ".join(f'"{name}"' for name in _ENGINES if name)
        raise ValueError(f"[{op}] expected engine {names} but got {engine!r}")
    for options in (forward, backward):
        precision = options.get("precision", "")
        if precision not in _PRECISIONS:
            raise ValueError(
                f'[{op}] expected precision "ieee", "tf32" or "bf16x3" but got {precision!r}'
            )
    if (forward.get("precision") or "ieee") != (backward.get("precision") or "ieee"):
        raise ValueError(f"[{op}] expected one precision for both passes but got two")
    return forward, backward


def blocks_of(forward, backward):
    """The hints for both passes as the library takes them: queries, keys, warps and stages."""
    common = ("num_warps", "num_stages")
    # The backward pass is one program; its blocks are those of torch's loop for dK and dV.
    names = (("BLOCK_M", "BLOCK_N", *common), ("BLOCK_M1", "BLOCK_N1", *common))
    return [
        tuple(options.get(name, 0) for name in these)
        for options, these in zip((forward, backward), names, strict=True)
    ]


def _option(op, name, plain, value):
    if plain in _WORDS:
        if isinstance(value, str):
            return value
        raise TypeError(f"[{op}] expected kernel_options[{name!r}] to be text but got {value!r}")
    if plain in _FLAGS:
        if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
            return bool(value)
        raise TypeError(f"[{op}] expected kernel_options[{name!r}] to be a bool but got {value!r}")
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(
            f"[{op}] expected kernel_options[{name!r}] to be an integer but got {value!r}"
        ) from None
    least = 1 if plain in _SIZES else 0
    if not least <= value < 2**31:
        raise ValueError(
            f"[{op}] expected kernel_options[{name!r}] of at least {least} but got {value}"
        )
    return value


def _seed(op, value):
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"[{op}] expected seed to be an integer but got {value!r}") from None
    if not 0 <= value < 2**64:
        raise ValueError(f"[{op}] expected a seed of 0 to 2**64 - 1 but got {value}")
    return value


@names_synonyms
def flex_attention(
    query: Array,
    key: Array,
    value: Array,
    score_mod: ModLike | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
    mask_mod: ModLike | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    segment_ids: Array | None = None,
    kv_segment_ids: Array | None = None,
    cu_seqlens: Array | None = None,
    kv_cu_seqlens: Array | None = None,
    kv_lengths: Array | None = None,
    sinks: Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    layout: str = "bhsd",
    deterministic: bool = True,
    device: str | None = None,
) -> Any:
    """``softmax(mask(score_mod(scale * Q K^T))) V`` in one pass, in memory O(L + S).

    Shapes, for layout "bhsd" ("bshd": sequence before heads):
      query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev), all float32, float64, float16
      or bfloat16; any strides and lengths. Hq is a multiple of Hkv; if they differ, enable_gqa=True
      is required, as in torch.

    score_mod(score, b, h, q_idx, kv_idx) -> score runs on the scaled scores, before the mask;
    mask_mod(b, h, q_idx, kv_idx) -> bool keeps a score where True. block_mask: a BlockMask. causal:
    kv <= q; window=(left, right): q - left <= kv <= q + right, -1 is unbounded; segment_ids (B, L),
    kv_segment_ids (B, S): only equal ids attend. Several masks are intersected. Positions count
    from the top left.

    cu_seqlens (N + 1,) int32: N sequences packed in a batch of 1; positions seen by mods restart.
    kv_lengths (B,), or (N,) with cu_seqlens: keys from there on are ignored, whatever the arrays
    hold. sinks (Hq,): one more logit per head in the denominator. dropout: the fraction of
    probabilities dropped by philox(seed, b, h, q, kv). scale: None is 1 / sqrt(E).

    kernel_options: torch's names, taken as hints. BLOCK_M and BLOCK_N (forward) and BLOCK_M1 and
    BLOCK_N1 (backward) set the tiles, num_warps and num_stages those of tile programs on a GPU.
    autotune=True measures a few blocks in the first call of a shape and keeps the fastest, on disk
    too. engine: "tiles" or "sm90", by default the fastest that supports the call. precision of
    float32 products on GPUs: "ieee", "tf32" or "bf16x3". docs/reference/attention.md has a table of
    all. device: None runs where the arrays are (GPU arrays give arrays of their framework); "cpu",
    "cuda" or "cuda:N" runs there, and NumPy arrays give NumPy arrays.

    Returns out (B, Hq, L, Ev) in query's layout and dtype; with return_lse=True (out, lse); with
    return_aux=AuxRequest(...) (out, AuxOutput). A row with nothing to attend to gives out 0 and lse
    -inf. Raises ValueError or TypeError, naming the argument, if something does not fit.
    """
    arguments = AttentionArguments(**locals())
    with stream_of(query):
        problem = _Problem("flex_attention", arguments)
        return problem.results(problem.run())


@names_synonyms
def flex_attention_vjp(
    query: Array,
    key: Array,
    value: Array,
    score_mod: ModLike | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
    mask_mod: ModLike | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    segment_ids: Array | None = None,
    kv_segment_ids: Array | None = None,
    cu_seqlens: Array | None = None,
    kv_cu_seqlens: Array | None = None,
    kv_lengths: Array | None = None,
    sinks: Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    layout: str = "bhsd",
    deterministic: bool = True,
    device: str | None = None,
) -> tuple[Any, Callable[..., Gradients]]:
    """``(flex_attention(...), pullback)``.

    ``pullback(dout, dlse=None)`` returns `Gradients`: query, key, value (with shapes, dtypes and
    layouts of the inputs), sinks, and captured, a list with one entry per float capture in the
    order in which score_mod first uses them. dout has the shape and dtype of out, dlse those of
    lse.

    The pullback reads the arrays of the forward pass, captures and `out` again, without a copy: it
    raises ValueError if one of them was changed in place meanwhile. On GPUs this is noticed for
    PyTorch tensors only, and never for captures.
    """
    arguments = AttentionArguments(**locals())
    with stream_of(query):
        problem = _Problem("flex_attention_vjp", arguments)
        forward = problem.run()
        results = problem.results(forward)
        unchanged = Unchanged(problem.read_again(forward))

    def pullback(dout, dlse=None):
        with stream_of(query):
            unchanged.check("pullback")
            gradients = _core.attention_backward(
                *problem.inputs,
                forward=forward,
                dout=problem.tensor("pullback", "dout", dout),
                options=problem.options,
                dlse=problem.tensor("pullback", "dlse", dlse),
            )
            return Gradients(
                to_array(gradients.query, query),
                to_array(gradients.key, query),
                to_array(gradients.value, query),
                to_array(gradients.sinks, query),
                [to_array(tensor, query) for tensor in gradients.captured],
            )

    return results, pullback


class _Problem:
    """The arguments of one call, checked and converted to the library's."""

    def __init__(self, op, arguments):
        self.op, self.arguments = op, arguments
        arguments.check(op)
        self.aux = arguments.return_aux
        self.return_lse = flag(op, "return_lse", arguments.return_lse)
        self.device = arguments.device
        self.like = arguments.query
        self.inputs = [
            self.tensor(op, name, getattr(arguments, name)) for name in ("query", "key", "value")
        ]
        self.options = self._options(arguments)
        self._check_heads(flag(op, "enable_gqa", arguments.enable_gqa), arguments.layout)

    def tensor(self, op, name, value):
        """An argument as a tensor on the device where the call runs."""
        return to_device(op, to_tensor(op, name, value), self.device)

    def _options(self, arguments):
        op = self.op
        options = _core.AttentionOptions()
        if arguments.scale is not None:
            options.scale = number(op, "scale", arguments.scale)
        if arguments.score_mod is not None:
            options.score_mod = as_mod(op, "score_mod", arguments.score_mod, False)
        if arguments.mask_mod is not None:
            options.mask = as_mod(op, "mask_mod", arguments.mask_mod, True)
        block_mask = arguments.block_mask
        if block_mask is not None:
            if not isinstance(block_mask, BlockMask):
                front_end = type(block_mask).__module__.rpartition(".")[0]
                raise TypeError(
                    f"[{op}] expected block_mask to be a BlockMask of tilewright but got "
                    f"{type(block_mask).__name__}"
                    + (f" of {front_end}" if type(block_mask).__name__ == "BlockMask" else "")
                )
            shape = self.inputs[0].shape
            if len(shape) == 4:
                block_mask.check_fits(op, shape[0], shape[2 if arguments.layout == "bshd" else 1])
            options.block_mask = block_mask._core
        options.causal = flag(op, "causal", arguments.causal)
        options.window = arguments.window_bounds(op)
        for name in ("cu_seqlens", "kv_cu_seqlens", "kv_lengths"):  # checked where they are
            if (given := getattr(arguments, name)) is not None:
                setattr(options, name, to_tensor(op, name, given))
        for name in ("segment_ids", "kv_segment_ids", "sinks"):
            if (given := getattr(arguments, name)) is not None:
                setattr(options, name, self.tensor(op, name, given))
        options.dropout = number(op, "dropout", arguments.dropout)
        options.seed = _seed(op, arguments.seed)
        options.bshd = arguments.layout == "bshd"
        options.deterministic = flag(op, "deterministic", arguments.deterministic)
        options.max_scores = self.aux is not None and self.aux.max_scores
        forward, backward = kernel_options_of(op, arguments.kernel_options)
        options.forward_blocks, options.backward_blocks = blocks_of(forward, backward)
        options.autotune = forward.get("autotune", False) or backward.get("autotune", False)
        options.engine = forward.get("engine", "")
        options.precision = forward.get("precision", "")
        return options

    def _check_heads(self, enable_gqa, layout):
        if enable_gqa or any(len(tensor.shape) != 4 for tensor in self.inputs):
            return
        axis = 1 if layout == "bhsd" else 2
        query_heads, kv_heads = (tensor.shape[axis] for tensor in self.inputs[:2])
        if query_heads != kv_heads:
            raise ValueError(
                f"[{self.op}] expected as many key as query heads without enable_gqa=True but got "
                f"{query_heads} query heads and {kv_heads} key heads"
            )

    def read_again(self, forward):
        """What the backward pass reads, for `Unchanged`."""
        options, given = self.options, vars(self.arguments)
        names = ("query", "key", "value")
        arrays = [(n, tensor, given[n]) for n, tensor in zip(names, self.inputs, strict=True)]
        names = ("segment_ids", "kv_segment_ids", "cu_seqlens", "kv_cu_seqlens", "kv_lengths")
        for name in (*names, "sinks"):
            arrays.append((name, getattr(options, name), given[name]))
        for name, mod in (("score_mod", options.score_mod), ("mask_mod", options.mask)):
            if given[name] is not None:
                arrays += [(what, tensor, None) for what, tensor in captured(mod, name)]
        return [*arrays, ("the result `out`", forward.out, None)]

    def run(self):
        return _core.attention(*self.inputs, options=self.options)

    def results(self, forward):
        out = to_array(forward.out, self.like)
        if self.aux is not None:
            return out, AuxOutput(
                to_array(forward.lse, self.like) if self.aux.lse else None,
                to_array(forward.max_scores, self.like) if self.aux.max_scores else None,
            )
        return (out, to_array(forward.lse, self.like)) if self.return_lse else out
