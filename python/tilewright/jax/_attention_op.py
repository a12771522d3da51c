"""The primitives of attention, forward and backward, and the custom_vjp that connects them."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from .. import _core
from . import _primitive

_forward_p = _primitive.define("tilewright_attention")
_backward_p = _primitive.define("tilewright_attention_backward")

_DIFFERENTIABLE = ("query", "key", "value", "sinks", "dscore")
_READ_BY_THE_HOST = frozenset(("cu_seqlens", "kv_cu_seqlens", "seed", "block_mask", "origin"))
_WORDS = ("seed", "block_mask")  # u32 already
_BATCHED = frozenset(
    ("query", "key", "value", "segment_ids", "kv_segment_ids", "kv_lengths")
    + ("out", "lse", "dout", "dlse")
)


def split_host(operands):
    """Returns the (name, array) pairs that stay operands, and Spec.host.

    On a GPU the host would have to wait for operands that it reads, so there values known while a
    function is traced become part of the call, and a mask is copied to the GPU once. Outside of a
    trace each array would need a program of its own: they stay operands.
    """
    traced = any(isinstance(array, jax.core.Tracer) for _, array in operands)
    if not traced or jax.default_backend() == "cpu":
        return operands, ()
    kept, host = [], []
    for name, array in operands:
        if name in _READ_BY_THE_HOST and not isinstance(array, jax.core.Tracer):
            words = np.asarray(array)
            host.append((name, (words if name in _WORDS else words.astype(np.int32)).tobytes()))
        else:
            kept.append((name, array))
    return kept, tuple(host)


@dataclasses.dataclass(frozen=True)
class Spec:
    """Everything about one attention call except its arrays; src/jax/attention.cpp reads it."""

    operands: tuple  #: names of the operands, in order
    score_mod: str  #: text of a mod, or ""
    derivative: str  #: of the score mod, "" where it follows from its text
    gathers: str
    mask_mod: str
    scale: float
    causal: bool
    window: tuple
    dropout: float
    bshd: bool
    deterministic: bool
    checked: bool
    mask_batches: int  #: of the block mask; 1 without one
    mask_heads: int
    host: tuple = ()  #: (name, u32 words as bytes): what the host reads, where it is known by now
    max_scores: bool = True
    counts_from_origin: bool = False  #: mods and dropout count from the operand `origin`
    backward: bool = False
    gradient: bool = False  #: of a forward: the backward will follow, and may be compiled already
    labels: tuple = ()  #: of the operands, for messages
    by_batch: tuple = ()  #: (place of an operand, its dimension that mods index by the batch alone)
    forward_blocks: tuple = (0, 0, 0, 0)  #: queries, keys, warps, stages; 0: chosen here
    backward_blocks: tuple = (0, 0, 0, 0)
    engine: str = ""
    precision: str = ""
    autotune: bool = False

    @property
    def op(self):
        return "flex_attention"

    @property
    def target(self):
        if self.backward:
            return "tilewright_attention_backward"
        # A call that reads operands on the host cannot be recorded in a command buffer.
        on_host = not _READ_BY_THE_HOST.isdisjoint(self.operands)
        return "tilewright_attention_host" if on_host else "tilewright_attention"

    def __call__(self, *operands):
        return (_backward_p if self.backward else _forward_p).bind(*operands, spec=self)

    def attributes(self):
        left, right = self.window
        return {
            "operands": " ".join(self.operands),
            "score_mod": self.score_mod,
            "derivative": self.derivative if self.backward else "",
            "gathers": self.gathers if self.backward else "",
            "mask_mod": self.mask_mod,
            "scale": self.scale,
            "causal": self.causal,
            "window_left": left,
            "window_right": right,
            "dropout": self.dropout,
            "bshd": self.bshd,
            "deterministic": self.deterministic,
            "gradient": self.gradient,
            "forward_blocks": " ".join(map(str, self.forward_blocks)),
            "backward_blocks": " ".join(map(str, self.backward_blocks)),
            "engine": self.engine,
            "precision": self.precision,
            "autotune": self.autotune,
            "checked": self.checked,
            "counts_from_origin": self.counts_from_origin,
            "host": " ".join(f"{name} {len(words) // 4}" for name, words in self.host),
            "host_words": np.frombuffer(b"".join(words for _, words in self.host), np.uint32),
        }

    def label(self, place):
        """An operand's name for messages."""
        return self.labels[place] if place < len(self.labels) else self.operands[place]

    def named(self, operands):
        """{name: operand}, the first one of each name."""
        return dict(zip(reversed(self.operands), reversed(operands), strict=True))

    def named_arrays(self):
        """The names of all arrays: operands, and arrays known while tracing."""
        return {*self.operands, *(name for name, _ in self.host)}

    def results(self, *operands):
        of = jax.ShapeDtypeStruct
        if self.backward:
            return [of(x.shape, x.dtype) for x in self._differentiable(operands)]
        named = self.named(operands)
        query, value = named["query"], named["value"]
        batch, heads, length = (query.shape[i] for i in ((0, 2, 1) if self.bshd else (0, 1, 2)))
        wide = jnp.float64 if query.dtype == jnp.float64 else jnp.float32
        rows = of((batch, heads, length), wide)
        out = of((*query.shape[:3], value.shape[3]), value.dtype)
        return [out, rows, *[rows] * self.max_scores]

    def _differentiable(self, operands):
        pairs = zip(self.operands, operands, strict=True)
        return [x for name, x in pairs if name in _DIFFERENTIABLE]

    # ---- vmap.

    def batch(self, operands, dims):
        size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
        mapped = [d is not None for d in dims]
        moved = [
            x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)
        ]
        if self._joins(mapped):
            return self._join(size, moved, mapped)

        def step(_, i):
            return None, self(*(x[i] if m else x for x, m in zip(moved, mapped, strict=True)))

        _, results = jax.lax.scan(step, None, jnp.arange(size))
        return results, [0] * len(results)

    def _joins(self, mapped):
        """Whether the mapped axis can become part of the batch."""
        whole = {name for name, m in zip(self.operands, mapped, strict=True) if m}
        if self.backward and ("sinks" in self.operands or self.derivative):
            return False
        if self.counts_from_origin:
            return False
        return not (
            whole - {*_BATCHED, "score", "dscore", "mask"}
            or "cu_seqlens" in self.named_arrays()
            or self.mask_batches > 1
        )

    def _join(self, size, operands, mapped):
        joined, mapped_arrays = [], {"score": [], "mask": []}
        for name, x, m in zip(self.operands, operands, mapped, strict=True):
            if name in _BATCHED:
                wide = x if m else jnp.broadcast_to(x, (size, *x.shape))
                joined.append(wide.reshape(size * wide.shape[1], *wide.shape[2:]))
                continue
            if name == "dscore" and self.backward and not m:
                x, m = jnp.broadcast_to(x, (size, *x.shape)), True  # one gradient each
            if name in ("score", "dscore", "mask"):
                mapped_arrays["mask" if name == "mask" else "score"].append(m)
            joined.append(x)
        query = self.named(operands)["query"]
        batch = query.shape[1 if self.named(mapped)["query"] else 0]
        spec = dataclasses.replace(
            self,
            score_mod=_batched(self.score_mod, batch, mapped_arrays["score"]),
            mask_mod=_batched(self.mask_mod, batch, mapped_arrays["mask"]),
            by_batch=(),  # of the problems one after the other
        )
        results = spec(*joined)
        if not self.backward:
            return [_split(x, size) for x in results], [0] * len(results)
        names = [name for name in self.operands if name in _DIFFERENTIABLE]
        return [
            _split(x, size) if name in _BATCHED else x
            for name, x in zip(names, results, strict=True)
        ], [0] * len(results)

    # ---- Sharding: batch and heads may be split over devices.

    def _dims(self, name, rank, place):
        """A name for each dimension of an operand: b, H (query heads), K (kv heads), or another for
        those that every device needs whole."""
        heads = {"query": "H", "key": "K", "value": "K", "out": "H", "dout": "H"}.get(name)
        if heads:
            length = "s" if heads == "K" else "l"
            width = "e" if name in ("query", "key") else "v"
            middle = [length, heads] if self.bshd else [heads, length]
            return ["b", *middle, width]
        known = {
            "lse": ["b", "H", "l"],
            "dlse": ["b", "H", "l"],
            "segment_ids": ["b", "l"],
            "kv_segment_ids": ["b", "s"],
            "sinks": ["H"],
        }
        if "cu_seqlens" not in self.named_arrays():
            known["kv_lengths"] = ["b"]
        dims = known.get(name) or [f"x{place}d{i}" for i in range(rank)]
        for own, dim in self.by_batch:
            if own == place:
                dims[dim] = "b"
        return dims

    def _all_dims(self, operand_ranks):
        """The same for every operand and every result."""
        operands = [
            self._dims(name, rank, place)
            for place, (name, rank) in enumerate(zip(self.operands, operand_ranks, strict=True))
        ]
        if not self.backward:
            names = ("out", "lse", *["lse"] * self.max_scores)
            return operands, [self._dims(name, 0, 0) for name in names]
        pairs = zip(self.operands, operands, strict=True)
        return operands, [dims for name, dims in pairs if name in _DIFFERENTIABLE]

    def sharding_rule(self, operand_shapes, result_shapes):
        named = self.named(operand_shapes)
        axis = 2 if self.bshd else 1
        query_heads, kv_heads = named["query"][axis], named["key"][axis]
        group = query_heads // max(kv_heads, 1)
        terms = {"H": "k", "K": "k"}
        if kv_heads == 1 and group > 1:
            terms = {"H": "g", "K": "k"}
        elif group > 1:
            terms = {"H": "(k g)", "K": "k"}

        def text(lists):
            return ", ".join(" ".join(terms.get(dim, dim) for dim in dims) for dims in lists)

        operands, results = self._all_dims(map(len, operand_shapes))
        rule = f"{text(operands)} -> {text(results)}"
        splittable = {"b", "k", "g"} if kv_heads == 1 else {"b", "k"}
        whole = [name for name in dict.fromkeys(re.findall(r"\w+", rule)) if name not in splittable]
        sizes = {"g": group} if "(" in terms["H"] else {}
        # Shardy expects the names in the order in which they first appear.
        return rule, {"need_replication_factors": tuple(whole), **sizes}

    def shard(self, mesh, operands, results):
        operand_dims, result_dims = self._all_dims(map(len, operands))
        query, key = self.named(operands)["query"], self.named(operands)["key"]
        axis = 2 if self.bshd else 1
        axes = {"b": query[0], "H": query[axis], "K": key[axis]}

        def specs(lists):
            return [PartitionSpec(*(axes.get(dim) for dim in dims)) for dims in lists]

        run = functools.partial(self._run_shard, _names(axes["b"]), _names(axes["H"]), axes["K"])
        return run, specs(operand_dims), specs(result_dims)

    def _run_shard(self, batch_axes, head_axes, kv_axes, *operands):
        spec, given = self, operands
        if batch_axes or head_axes:
            spec, given = self._with_origin(batch_axes, head_axes, operands)
        results = _primitive.custom_call(spec, *given)
        if not self.backward:
            return results
        over = {
            "dscore": batch_axes + head_axes,
            "sinks": batch_axes,
            "key": () if kv_axes else head_axes,
            "value": () if kv_axes else head_axes,
        }
        own = {place for place, _ in self.by_batch}  # they hold the shard's batches only
        axes = [
            head_axes if place in own else over.get(name, ())
            for place, name in enumerate(self.operands)
            if name in _DIFFERENTIABLE
        ]
        return [_summed(x, a) for x, a in zip(results, axes, strict=True)]

    def _with_origin(self, batch_axes, head_axes, operands):
        """The call of one shard, whose mods, dropout and masks count batches and heads of the
        whole.

        Mods read where their shard begins from an array, so that engines see ordinary mods.
        Dropout, derivatives of mods and slices of masks need the origin itself, on the host.
        """
        query = self.named(operands)["query"]
        batch, heads = query.shape[0], query.shape[2 if self.bshd else 1]
        origin = jnp.stack(
            [
                batch * jax.lax.axis_index(batch_axes) if batch_axes else jnp.int32(0),
                heads * jax.lax.axis_index(head_axes) if head_axes else jnp.int32(0),
            ]
        ).astype(jnp.int32)
        pairs = list(zip(self.operands, operands, strict=True))
        changes = {"counts_from_origin": bool(self.dropout or self.derivative)}
        if not changes["counts_from_origin"]:
            own = {place for place, _ in self.by_batch}
            for field, kinds in (("score_mod", ("score", "dscore")), ("mask_mod", ("mask",))):
                if not getattr(self, field):
                    continue
                local = [i in own for i, name in enumerate(self.operands) if name in kinds]
                changes[field] = _core.shifted_mod_ir(getattr(self, field), local)
                first = next((i for i, (n, _) in enumerate(pairs) if n in kinds), len(pairs))
                pairs.insert(first, (kinds[0], origin))
        if changes["counts_from_origin"] or max(self.mask_batches, self.mask_heads) > 1:
            pairs.insert(0, ("origin", origin))
        changes |= {"by_batch": (), "labels": ()}  # their positions refer to the whole call
        spec = dataclasses.replace(self, operands=tuple(name for name, _ in pairs), **changes)
        return spec, [x for _, x in pairs]


def _names(axes):
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)


def _summed(x, axes):
    if not axes:
        return x
    return jax.lax.psum(x.astype(jnp.promote_types(x.dtype, jnp.float32)), axes).astype(x.dtype)


def _split(x, size):
    return x.reshape(size, x.shape[0] // size, *x.shape[1:])


def _batched(text, batch, mapped):
    return text and _core.batched_mod_ir(text, batch, mapped)


def on_mesh(spec, operands):
    """out, lse and, if requested, max_scores: from one call, or from one per shard where batch or
    heads are split over explicit axes."""

    def local(*shards):
        own, given = spec, shards
        query = spec.named([_primitive.entries(x) for x in operands])["query"]
        axes = _names(query[0]), _names(query[2 if spec.bshd else 1])
        if any(axes):
            own, given = spec._with_origin(*axes, shards)
        return attention(own, *_primitive.aligned(*given))

    results = _primitive.over_explicit_axes(spec, operands, local)
    return attention(spec, *_primitive.aligned(*operands)) if results is None else results


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(spec, *operands):
    """out, lse and, if requested, max_scores, which has no gradient."""
    return tuple(spec(*operands))


def _forward(spec, *operands):
    # The forward pass does not read the derivative of a mod that has a rule of its own.
    known = not spec.derivative
    out, lse, *rest = dataclasses.replace(spec, gradient=known)(*operands)
    return (out, lse, *rest), (operands, out, lse)


def _backward(spec, saved, cotangents):
    operands, out, lse = saved
    dout, dlse, *_ = cotangents
    backward = dataclasses.replace(
        spec, operands=(*spec.operands, "out", "lse", "dout", "dlse"), backward=True
    )
    gradients = iter(backward(*operands, out, lse, dout, dlse))
    return tuple(next(gradients) if name in _DIFFERENTIABLE else None for name in spec.operands)


attention.defvjp(_forward, _backward)
