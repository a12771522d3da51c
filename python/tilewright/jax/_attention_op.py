"""The primitives of attention, forward and backward, and the rule that ties them together."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from .. import _core
from . import _primitive

_forward_p = _primitive.define("tilewright_attention")
_backward_p = _primitive.define("tilewright_attention_backward")

_DIFFERENTIABLE = ("query", "key", "value", "sinks", "dscore")
_BATCHED = ("query", "key", "value", "segment_ids", "kv_segment_ids", "out", "lse", "dout", "dlse")


@dataclasses.dataclass(frozen=True)
class Spec:
    """One call of attention but for its arrays; src/jax/attention.cpp reads it."""

    operands: tuple  #: names of the operands, in order
    score_mod: str  #: text of a mod, or ""
    mask_mod: str
    scale: float
    causal: bool
    window: tuple
    dropout: float
    bshd: bool
    deterministic: bool
    checked: bool
    mask_batches: int  #: batches of the block masks; 0 without one
    backward: bool = False

    @property
    def target(self):
        return "tilewright_attention_backward" if self.backward else "tilewright_attention"

    def __call__(self, *operands):
        return (_backward_p if self.backward else _forward_p).bind(*operands, spec=self)

    def attributes(self):
        left, right = self.window
        return {
            "operands": " ".join(self.operands),
            "score_mod": self.score_mod,
            "mask_mod": self.mask_mod,
            "scale": self.scale,
            "causal": self.causal,
            "window_left": left,
            "window_right": right,
            "dropout": self.dropout,
            "bshd": self.bshd,
            "deterministic": self.deterministic,
            "checked": self.checked,
        }

    def named(self, operands):
        """The first operand of each name."""
        return dict(zip(reversed(self.operands), reversed(operands), strict=True))

    def results(self, *operands):
        of = jax.ShapeDtypeStruct
        if self.backward:
            return [of(x.shape, x.dtype) for x in self._differentiable(operands)]
        named = self.named(operands)
        query, value = named["query"], named["value"]
        batch, heads, length = (query.shape[i] for i in ((0, 2, 1) if self.bshd else (0, 1, 2)))
        wide = jnp.float64 if query.dtype == jnp.float64 else jnp.float32
        rows = of((batch, heads, length), wide)
        return [of((*query.shape[:3], value.shape[3]), value.dtype), rows, rows]

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
        if self.backward and "sinks" in self.operands:
            return False
        return not (
            whole - {*_BATCHED, "score", "dscore", "mask"}
            or "cu_seqlens" in self.operands
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
                x, m = jnp.broadcast_to(x, (size, *x.shape)), True  # each has a gradient of its own
            if name in ("score", "dscore", "mask"):
                mapped_arrays["mask" if name == "mask" else "score"].append(m)
            joined.append(x)
        query = self.named(operands)["query"]
        batch = query.shape[1 if self.named(mapped)["query"] else 0]
        spec = dataclasses.replace(
            self,
            score_mod=_batched(self.score_mod, batch, mapped_arrays["score"]),
            mask_mod=_batched(self.mask_mod, batch, mapped_arrays["mask"]),
        )
        results = spec(*joined)
        if not self.backward:
            return [_split(x, size) for x in results], [0] * 3
        names = [name for name in self.operands if name in _DIFFERENTIABLE]
        return [
            _split(x, size) if name in _BATCHED else x
            for name, x in zip(names, results, strict=True)
        ], [0] * len(results)


def _split(x, size):
    return x.reshape(size, x.shape[0] // size, *x.shape[1:])


def _batched(text, batch, mapped):
    return text and _core.batched_mod_ir(text, batch, mapped)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(spec, *operands):
    """out, lse, max_scores. The last has no gradient."""
    return tuple(spec(*operands))


def _forward(spec, *operands):
    out, lse, max_scores = spec(*operands)
    return (out, lse, max_scores), (operands, out, lse)


def _backward(spec, saved, cotangents):
    operands, out, lse = saved
    dout, dlse, _ = cotangents
    backward = dataclasses.replace(
        spec, operands=(*spec.operands, "out", "lse", "dout", "dlse"), backward=True
    )
    gradients = iter(backward(*operands, out, lse, dout, dlse))
    return tuple(next(gradients) if name in _DIFFERENTIABLE else None for name in spec.operands)


attention.defvjp(_forward, _backward)
