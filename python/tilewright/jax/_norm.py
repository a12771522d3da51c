"""RMSNorm and LayerNorm."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from .._arrays import number
from .._synonyms import names_synonyms
from . import _primitive

_forward_p = _primitive.define("tilewright_norm")
_backward_p = _primitive.define("tilewright_norm_backward")


@names_synonyms
def rms_norm(x, weight=None, eps=1e-5, residual=None, return_stats=False):
    """``x / sqrt(mean(x**2) + eps) * weight`` over all dimensions of the weight.

    x: floats of any shape. weight: of any float dtype and the shape of x's last dimensions; without
    one the norm is over the last axis. residual: of x's shape and dtype, added before the norm.

    Returns y, of x's shape and the weight's dtype (x's without a weight); with a residual ``(y, x +
    residual)``. return_stats appends the inverse deviation of each row (f32; f64 for f64 x).
    Reverse-mode differentiable in all of them; x may be sharded over its rows.
    """
    return _norm("rms_norm", False, x, weight, None, eps, residual, return_stats)


@names_synonyms
def layer_norm(x, weight=None, bias=None, eps=1e-5, residual=None, return_stats=False):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over all dimensions of the weight.

    Arguments and results are as in rms_norm; the bias has the weight's shape and dtype.
    return_stats appends the mean and the inverse deviation.
    """
    return _norm("layer_norm", True, x, weight, bias, eps, residual, return_stats)


@dataclasses.dataclass(frozen=True)
class _Spec:
    """One direction of a norm. Operands and results: src/jax/norm.cpp."""

    backward: bool
    layer: bool
    eps: float
    dims: int  #: normalised dimensions
    weight: bool
    bias: bool
    residual: bool
    y_dtype: object

    @property
    def op(self):
        return "layer_norm" if self.layer else "rms_norm"

    @property
    def target(self):
        return "tilewright_norm_backward" if self.backward else "tilewright_norm"

    @property
    def primitive(self):
        return _backward_p if self.backward else _forward_p

    def attributes(self):
        names = ("layer", "weight", "bias", "residual")
        flags = {name: getattr(self, name) for name in names}
        return {**flags, "eps": self.eps}

    def __call__(self, *operands):
        return self.primitive.bind(*(x for x in operands if x is not None), spec=self)

    def results(self, *operands):
        x = operands[0]
        of = jax.ShapeDtypeStruct
        if self.backward:
            weight = [of(x.shape[x.ndim - self.dims :], self.y_dtype)]
            return [of(x.shape, x.dtype), *weight * self.weight, *weight * self.bias]
        stats = of(x.shape[: x.ndim - self.dims], _stats_dtype(x.dtype))
        sums = [of(x.shape, x.dtype)] * self.residual
        return [of(x.shape, self.y_dtype), *sums, stats, *[stats] * self.layer]

    # Which operands and results have the rows of x, and which have the weight's shape.

    def _operand_rows(self):
        weights = [False] * (self.weight + self.bias)
        if self.backward:
            return [True, True, *[True] * self.layer, *weights, True, *[True] * self.residual]
        return [True, *weights, *[True] * self.residual]

    def _result_rows(self):
        if self.backward:
            return [True, *[False] * (self.weight + self.bias)]
        return [True, *[True] * self.residual, True, *[True] * self.layer]

    def batch(self, operands, dims):
        size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
        rows = self._operand_rows()
        weights_batched = any(d is not None and not row for d, row in zip(dims, rows, strict=True))
        if weights_batched or (self.backward and self.weight):
            # Each element of the batch has its own weight, or gradient of one.
            def one(*parts):
                return tuple(self(*parts))

            moved = [
                jnp.moveaxis(x, d, 0) if d is not None else x
                for x, d in zip(operands, dims, strict=True)
            ]
            mapped = [d is not None for d in dims]

            def step(_, i):
                return None, one(*(x[i] if m else x for x, m in zip(moved, mapped, strict=True)))

            _, results = jax.lax.scan(step, None, jnp.arange(size))
            return list(results), [0] * len(results)
        batched = [
            jnp.moveaxis(x, d, 0)
            if d is not None
            else jnp.broadcast_to(x, (size, *x.shape))
            if row
            else x
            for x, d, row in zip(operands, dims, rows, strict=True)
        ]
        return self(*batched), [0] * len(self._result_rows())

    def sharding_rule(self, operand_shapes, result_shapes):
        rows = [f"r{i}" for i in range(len(operand_shapes[0]) - self.dims)]
        columns = [f"c{i}" for i in range(self.dims)]

        def term(shape, has_rows):
            return " ".join([*(rows if has_rows else []), *columns][: len(shape)])

        def terms(shapes, has_rows):
            return ", ".join(map(term, shapes, has_rows))

        rule = f"{terms(operand_shapes, self._operand_rows())} -> "
        rule += terms(result_shapes, self._result_rows())
        return rule, {"need_replication_factors": tuple(columns)}

    def shard(self, mesh, operands, results):
        x = operands[0]
        rows = x[: len(x) - self.dims]

        def specs(entries, has_rows):
            return [
                PartitionSpec(*rows[: len(e)]) if row else PartitionSpec()
                for e, row in zip(entries, has_rows, strict=True)
            ]

        axes = tuple(
            a for r in rows if r is not None for a in (r if isinstance(r, tuple) else (r,))
        )

        def run(*shards):
            outputs = _primitive.custom_call(self, *shards)
            if not (self.backward and self.weight and axes):
                return outputs
            wide = [x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in outputs[1:]]
            sums = jax.lax.psum(wide, axes)
            return [outputs[0], *(s.astype(self.y_dtype) for s in sums)]

        return run, specs(operands, self._operand_rows()), specs(results, self._result_rows())


def _stats_dtype(dtype):
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def _norm(op, layer, x, weight, bias, eps, residual, return_stats):
    x, weight, bias, residual = (
        None if a is None else jnp.asarray(a) for a in (x, weight, bias, residual)
    )
    _check(op, x, weight, bias, eps, residual)
    spec = _Spec(
        backward=False,
        layer=layer,
        eps=float(eps),
        dims=1 if weight is None else weight.ndim,
        weight=weight is not None,
        bias=bias is not None,
        residual=residual is not None,
        y_dtype=x.dtype if weight is None else weight.dtype,
    )
    with _primitive.reverse_mode_only(op):
        outputs = _on_mesh(spec, bool(return_stats), x, weight, bias, residual)
    return outputs[0] if len(outputs) == 1 else outputs


def _on_mesh(spec, return_stats, *arguments):
    """Runs as one call, or as one per shard where rows are split over explicit axes."""
    present = [x is not None for x in arguments]

    def local(*operands):
        given = iter(operands)
        whole = [next(given) if p else None for p in present]
        return tuple(_differentiable(spec, return_stats, *_primitive.aligned(*whole)))

    def outputs(specs):
        y, *rest = specs
        sums = [rest.pop(0)] if spec.residual else []
        return [y, *sums, *(reversed(rest) if return_stats else ())]

    operands = [x for x in arguments if x is not None]
    results = _primitive.over_explicit_axes(spec, operands, local, outputs)
    return local(*operands) if results is None else results


def _check(op, x, weight, bias, eps, residual):
    if x is None:
        raise TypeError(f"[{op}] expected x to be an array but got None")
    for name, array in (("x", x), ("weight", weight), ("bias", bias), ("residual", residual)):
        if array is not None and array.dtype not in (
            *(jnp.float32, jnp.float64, jnp.float16, jnp.bfloat16),
        ):
            raise TypeError(
                f"[{op}] expected {name} of float32, float64, float16 or bfloat16 but got "
                f"{array.dtype}"
            )
    if x.ndim < 1:
        raise ValueError(f"[{op}] expected x of rank 1 or more but got a scalar")
    if weight is not None:
        dims = weight.ndim
        if not 1 <= dims <= x.ndim or x.shape[x.ndim - dims :] != weight.shape:
            raise ValueError(
                f"[{op}] expected a weight whose shape ends that of x, {x.shape}, but got "
                f"{weight.shape}"
            )
    if isinstance(eps, jax.core.Tracer):
        raise TypeError(
            f"[{op}] expected eps to be a number known when the function is traced but got a traced "
            "value"
        )
    eps = number(op, "eps", eps)
    if not eps >= 0:
        raise ValueError(f"[{op}] expected eps of at least 0 but got {eps}")
    if bias is not None:
        if weight is None:
            raise ValueError(f"[{op}] expected a weight with the bias but got none")
        _expect_like(op, "bias", bias, "weight", weight)
    if residual is not None:
        _expect_like(op, "residual", residual, "x", x)


def _expect_like(op, name, array, other_name, other):
    if array.shape != other.shape or array.dtype != other.dtype:
        raise ValueError(
            f"[{op}] expected {name} of the shape and dtype of {other_name}, {other.dtype}"
            f"{list(other.shape)}, but got {array.dtype}{list(array.shape)}"
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _differentiable(spec, return_stats, x, weight, bias, residual):
    return _forward(spec, return_stats, x, weight, bias, residual)[0]


def _forward(spec, return_stats, x, weight, bias, residual):
    y, *rest = spec(x, weight, bias, residual)
    total = rest.pop(0) if spec.residual else x
    outputs = (y, *[total] * spec.residual, *(reversed(rest) if return_stats else ()))
    return outputs, (total, rest, weight, bias)


def _backward(spec, return_stats, saved, cotangents):
    total, stats, weight, bias = saved
    dy, *rest = cotangents
    dsum = rest.pop(0) if spec.residual else None
    backward = dataclasses.replace(spec, backward=True)
    dx, *others = backward(total, *stats, weight, bias, dy, dsum)
    if return_stats:
        dx = (dx + _through_stats(spec, total, stats, rest[::-1])).astype(total.dtype)
    dweight = others.pop(0) if spec.weight else None
    return dx, dweight, others[0] if spec.bias else None, dx if spec.residual else None


def _through_stats(spec, x, stats, dstats):
    """Gradient of x through the inverse deviation (mean((x - m)^2) + eps)^(-1/2) and the mean m."""
    deviation, *mean = stats
    axes = tuple(range(x.ndim - spec.dims, x.ndim))
    size = math.prod(x.shape[x.ndim - spec.dims :])

    def rows(v):
        return jnp.expand_dims(v, axes)

    centred = x.astype(deviation.dtype) - (rows(mean[0]) if mean else 0)
    dx = -rows(dstats[0] * deviation**3) * centred / size
    return dx + rows(dstats[1]) / size if mean else dx


_differentiable.defvjp(_forward, _backward)
