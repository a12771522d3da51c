"""Sites: attention calls without their arrays, made once and kept."""

import dataclasses
import functools
import json
import math

import torch

from .. import _core, _threads
from .._memo import Memo
from . import _errors

_CAPACITY = 4096  # the most sites kept
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)

_core.use_torch(torch, torch.nn.Parameter, _errors.BadInput, _threads.follow)


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a call does, as text and numbers only, so that it works in another process."""

    operands: tuple  #: what follows query, key, value; see python/src/attention_site.h
    score_mod: str = ""
    derivative: str = ""
    gathers: str = ""
    mask_mod: str = ""
    scale: float | None = None
    enable_gqa: bool = True
    causal: bool = False
    window: tuple = (-1, -1)
    dropout: float = 0.0
    bshd: bool = False
    deterministic: bool = True
    checked: bool = False
    max_scores: bool = False
    lse: bool = True  #: a result, which operators always have
    gradient: bool = False  #: the backward will follow
    autotune: bool = False
    engine: str = ""
    precision: str = ""
    forward_blocks: tuple = (0, 0, 0, 0)
    backward_blocks: tuple = (0, 0, 0, 0)
    origin: tuple | None = None  #: batch and head of a larger call that mods and dropout count from
    whole_masks: bool = False  #: block masks among the operands are of that call
    block_size: tuple | None = None  #: of torch's lists among the operands
    backward: bool = False
    wanted: tuple = (True, True, True)  #: backward: which gradients of query, key and value

    def options(self):
        options = _core.AttentionOptions()
        if self.scale is not None:
            options.scale = self.scale
        for name in (
            *("causal", "window", "dropout", "bshd", "deterministic", "checked", "gradient"),
            *("autotune", "engine", "precision", "forward_blocks", "backward_blocks"),
        ):
            setattr(options, name, getattr(self, name))
        if self.origin is not None:
            options.origin = self.origin
        return options


_READ_BY_HOST = frozenset(
    ("block_mask", "cu_seqlens", "kv_cu_seqlens", "kv_indices", "kv_num_blocks", "seed")
)


class Site:
    """One spec, the entry of its kernels, and the sites derived from it."""

    def __init__(self, spec, text):
        self.spec, self.text = spec, text
        self.names = ("query", "key", "value", *spec.operands)
        if spec.backward:
            self.op = "flex_attention_backward"
        else:
            self.op = "flex_attention"
        self._call = _core.TorchAttention(
            backward=spec.backward,
            wanted=list(spec.wanted),
            operands=" ".join(self.names),
            score_mod=spec.score_mod,
            derivative=spec.derivative if spec.backward or spec.gradient else "",
            gathers=spec.gathers if spec.backward or spec.gradient else "",
            mask_mod=spec.mask_mod,
            block_size=spec.block_size or (0, 0),
            whole_masks=spec.whole_masks,
            options=spec.options(),
        )
        self._backward = {}

    def __call__(self, operands, mask, seed):
        """The results, or None unless all operands are plain tensors."""
        return self._call(self, operands, mask, seed)

    @functools.cached_property
    def with_words(self):
        """The same with the block mask as one more operand: its packed words."""
        return site(_with_words(self.spec))

    @functools.cached_property
    def alone(self):
        """The same without lse, for calls that nothing else sees."""
        return self if self.spec.max_scores else site(dataclasses.replace(self.spec, lse=False))

    @functools.cached_property
    def words_at(self):
        """Position of the words of the call's own block mask among the operands, or None."""
        if "block_mask" not in self.names or self.spec.whole_masks:
            return None
        return self.names.index("block_mask")

    @functools.cached_property
    def without_words(self):
        """The same without the words, for a call that passes the mask itself."""
        operands = tuple(n for n in self.spec.operands if n != "block_mask")
        return site(dataclasses.replace(self.spec, operands=operands))

    @functools.cached_property
    def read_by_host(self):
        """Whether the host reads elements of operands."""
        return not _READ_BY_HOST.isdisjoint(self.names)

    @functools.cached_property
    def fused_dropout(self):
        """What stands for this site where `_ops.fused` is called, or None where it cannot be."""
        if self.spec.dropout or self.spec.max_scores or self.spec.checked:
            return None
        return _core.fused_dropout(self.text)

    def backward(self, needs_gradient, has_dlse):
        """The site of the backward pass, and for each operand the position of its gradient among
        the results, or None; needs_gradient tells for each operand whether one is needed."""
        key = needs_gradient, has_dlse
        found = self._backward.get(key)
        if found is None:
            made = site(self._backward_spec(needs_gradient, has_dlse))
            places, count = [], 0
            for name, wanted in zip(made.names, needs_gradient, strict=False):
                places.append(count if wanted else None)
                # For a mod with its own derivative all gradients are computed.
                count += wanted or name == "dscore"
            found = self._backward[key] = made, tuple(places)
        return found

    def _backward_spec(self, needs_gradient, has_dlse):
        spec = self.spec
        operands = []
        for name, needs in zip(spec.operands, needs_gradient[3:], strict=True):
            if name in ("score", "dscore") and not spec.derivative:
                name = "dscore" if needs else "score"
            elif name == "sinks" and not needs:
                name = "unused"  # they are part of lse
            operands.append(name)
        operands += ["out", "lse", "dout", *["dlse"] * has_dlse]
        return dataclasses.replace(
            spec, operands=tuple(operands), backward=True, gradient=False, max_scores=False,
            wanted=tuple(needs_gradient[:3]),
        )  # fmt: skip

    @functools.cached_property
    def gradients(self):
        """Names of the gradients that a backward site returns, in order."""
        wanted = dict(zip(("query", "key", "value"), self.spec.wanted, strict=True))
        return tuple(n for n in self.names if wanted.get(n) or n in ("sinks", "dscore"))

    # ---- Shapes.

    def results(self, mask, *operands):
        """Arguments of torch.empty_strided for each result; BadInput if an operand does not fit."""
        self.check(mask, operands)
        query, key, value = operands[:3]
        if self.spec.backward:
            named = zip(self.names, operands, strict=True)
            rest = [x for name, x in named if name in ("sinks", "dscore")]
            own = [x for x, w in zip((query, key, value), self.spec.wanted, strict=True) if w]
            return [_like(x, x.shape) for x in own] + [_dense(x) for x in rest]
        batch, heads, length = self.rows(query)
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        options = {"dtype": wide, "device": query.device}
        rows = (((batch, heads, length), (heads * length, length, 1)), options)
        out = _like(query, (*query.shape[:3], value.shape[3]))
        return [out, *[rows] * (self.spec.lse + self.spec.max_scores)]

    def rows(self, query):
        """Batch, heads and length of a query."""
        shape = query.shape
        return (shape[0], shape[2], shape[1]) if self.spec.bshd else tuple(shape[:3])

    def check(self, mask, operands):
        named = dict(zip(reversed(self.names), reversed(operands), strict=True))
        check_inputs(self.op, *operands[:3], self.spec.bshd, self.spec.enable_gqa)
        query, key = named["query"], named["key"]
        for name, x in zip(self.names, operands, strict=True):
            host = name in ("cu_seqlens", "kv_cu_seqlens", "block_mask", "seed")
            if x.device != query.device and not host:
                argument = {"score": "score_mod", "dscore": "score_mod", "mask": "mask_mod"}.get(
                    name
                )
                what = f"the tensors that {argument} captures" if argument else name
                raise _errors.BadInput(
                    f"[{self.op}] expected {what} on {query.device}, the device of query, but "
                    f"got one on {x.device}"
                )
        axis = 1 if self.spec.bshd else 2
        batch, heads, queries = self.rows(query)
        _check_optional(self.op, named, batch, heads, queries, key.shape[axis])
        if mask is not None:
            packed = "cu_seqlens" in named
            check_mask(self.op, mask.shape, 1 if packed else batch, heads, queries, key.shape[axis])


def _with_words(spec):
    return dataclasses.replace(spec, operands=(*spec.operands, "block_mask"))


_by_spec = Memo("call sites of PyTorch", _CAPACITY)
_by_text = Memo("call sites of PyTorch by their text", _CAPACITY)


def site(spec):
    """The site of a spec. The most recently used ones are kept."""
    found = _by_spec.find(spec)
    if found is None:
        text = json.dumps(dataclasses.asdict(spec), separators=(",", ":"))
        found = _by_spec.put(spec, Site(spec, text))
        _by_text.replace(text, found)
    return found


def parsed(text):
    """The site of a spec's text, which may come from another process."""
    found = _by_text.find(text)
    if found is None:
        fields = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in json.loads(text).items()
        }
        found = site(Spec(**fields))
    return found


# ---- Strides.


def dense_strides(shape, strides):
    """Dense strides in the order of the given ones, equal ones with the later dimension first, as
    in torch; the last dimension is innermost."""
    last = len(shape) - 1
    order = [last, *sorted(reversed(range(last)), key=lambda d: strides[d])]
    result, step = [0] * len(shape), 1
    for dim in order:
        result[dim] = step
        step = step * shape[dim]
    return tuple(result)


def _like(x, shape):
    return (tuple(shape), dense_strides(shape, x.stride())), {"dtype": x.dtype, "device": x.device}


def _dense(x):
    strides = [math.prod(x.shape[d + 1 :]) for d in range(x.ndim)]
    return (tuple(x.shape), tuple(strides)), {"dtype": x.dtype, "device": x.device}


# ---- Checks. Where torch has an error text for a mistake, ours contains it.


def _type(x):
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def check_inputs(op, query, key, value, bshd, enable_gqa):
    """BadInput, TypeError or NotImplementedError unless these can attend."""

    def refuse(text):
        raise _errors.BadInput(f"[{op}] {text}")

    tensors = {"query": query, "key": key, "value": value}
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"[{op}] expected {name} to be a tensor but got {type(x).__name__}")
    if not query.device == key.device == value.device:
        refuse(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device}, key.device: {key.device}, and value.device: {value.device} instead."
        )
    if query.device.type not in ("cpu", "cuda", "meta"):
        refuse(f"expected tensors on cpu or cuda but got {query.device}")
    for name, x in tensors.items():
        if x.layout != torch.strided or x.is_quantized:
            found = "a quantized tensor" if x.is_quantized else f"layout {x.layout}"
            refuse(f"expected {name} of dense memory but got {found}")
        if x.dim() != 4:
            raise NotImplementedError(
                f"[{op}] query, key, and value must be 4D tensors but got {name} {_type(x)}"
            )
        if x.dtype not in FLOATS:
            refuse(f"expected {name} of float32, float64, float16 or bfloat16 but got {_type(x)}")
        if x.dtype != query.dtype:
            refuse(
                "Expected query, key, and value to have the same dtype, but got query.dtype: "
                f"{query.dtype}, key.dtype: {key.dtype}, and value.dtype: {value.dtype} instead."
            )
    if query.shape[-1] != key.shape[-1]:
        refuse(
            "Expect query and key/value to have the same embedding dimension but got "
            f"E={query.shape[-1]} and E={key.shape[-1]}."
        )
    if query.shape[-1] == 0 or value.shape[-1] == 0:
        refuse(f"expected head dimensions of at least 1 but got {_type(query)}, {_type(value)}")
    if value.shape[:3] != key.shape[:3]:
        refuse(
            f"expected value with the batch, heads and length of key but got {_type(value)} and "
            f"key {_type(key)}"
        )
    heads, kv_heads = (x.shape[2 if bshd else 1] for x in (query, key))
    if heads != kv_heads and not enable_gqa:
        refuse(
            "Expect query and key/value to have the same number of heads but got "
            f"Hq={heads} and Hkv={kv_heads}. Try setting enable_gqa=True for GQA."
        )
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        refuse(
            "Expect number of query heads to be a multiple of kv heads for GQA but got "
            f"Hq={heads} and Hkv={kv_heads}."
        )
    if query.shape[0] != key.shape[0]:
        refuse(
            "Expect query and key/value to have the same batch size, but got "
            f"Bq={query.shape[0]} and Bkv={key.shape[0]}."
        )


def _check_optional(op, named, batch, heads, queries, keys):
    def refuse(text):
        raise _errors.BadInput(f"[{op}] {text}")

    packed = "cu_seqlens" in named
    for name, other in (("kv_segment_ids", "segment_ids"), ("kv_cu_seqlens", "cu_seqlens")):
        if name in named and other not in named:
            refuse(f"expected {other} with {name} but got none")
    if "segment_ids" in named and "kv_segment_ids" not in named and queries != keys:
        refuse(
            f"expected kv_segment_ids with segment_ids where lengths differ, {queries} and {keys}, "
            "but got none"
        )
    sequences = named["cu_seqlens"].numel() - 1 if packed else batch
    shapes = {
        "segment_ids": (batch, queries),
        "kv_segment_ids": (batch, keys),
        "kv_lengths": (sequences,),
        "sinks": (heads,),
    }
    for name, shape in shapes.items():
        if name in named and tuple(named[name].shape) != shape:
            refuse(f"expected {name} of shape {shape} but got {_type(named[name])}")
    for name in ("segment_ids", "kv_segment_ids", "cu_seqlens", "kv_cu_seqlens", "kv_lengths"):
        x = named.get(name)
        if x is not None and x.dtype not in _INTEGERS:
            refuse(f"expected {name} of integers but got {_type(x)}")
        if x is not None and "cu" in name and (x.dim() != 1 or x.shape[0] < 2):
            refuse(f"expected {name} of N + 1 integers but got {_type(x)}")
    if packed and batch != 1:
        refuse(f"expected a batch of 1 with cu_seqlens but got {batch}")
    if "sinks" in named and named["sinks"].dtype not in FLOATS:
        refuse(f"expected sinks of floats but got {_type(named['sinks'])}")


def check_mask(op, shape, batch, heads, queries, keys):
    """BadInput unless a block mask of this shape fits; the text is torch's."""
    if tuple(shape[2:]) != (queries, keys):
        smaller = shape[2] < queries or shape[3] < keys
        hint = (
            "As the block mask was created for a smaller length than you're using it for, you "
            "likely need to create a new block mask."
            if smaller
            else "You may want to use the mask's _adjust for lengths that are smaller."
        )
        raise _errors.BadInput(
            f"[{op}] block_mask was created for block_mask.shape={tuple(shape)} but got "
            f"q_len={queries} and kv_len={keys}. {hint}"
        )
    if shape[0] not in (1, batch) or shape[1] not in (1, heads):
        raise _errors.BadInput(
            f"[{op}] expected a block_mask with the batches and heads of query, {batch} and {heads}, "
            f"or 1 of either, but got {tuple(shape)}"
        )
