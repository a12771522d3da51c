"""RMSNorm and LayerNorm on torch tensors."""

import dataclasses
import functools
import json
import math

import torch

from .. import _core
from .._memo import Memo
from . import _errors, _ops, _sharded

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def rms_norm(x, weight=None, eps=1e-5, residual=None, return_stats=False):
    """``x / sqrt(mean(x**2) + eps) * weight`` over all dimensions of the weight.

    x: floats of any shape and strides. weight: of any float dtype and the shape of x's last
    dimensions; without one the norm is over the last axis. residual: of x's shape and dtype, added
    before the norm.

    Returns y, of x's shape and the weight's dtype (x's without a weight); with a residual ``(y, x +
    residual)``. return_stats appends the inverse deviation of each row (float32; float64 for
    float64 x), which has no gradient. Differentiable once in all tensors. Errors about arguments
    are both ValueError and RuntimeError; TypeError for what is not a tensor.

    `torch.nn.functional.rms_norm(x, normalized_shape, weight, eps)` normalises over the same
    dimensions.
    """
    return _norm("rms_norm", False, x, weight, None, eps, residual, return_stats)


def layer_norm(x, weight=None, bias=None, eps=1e-5, residual=None, return_stats=False):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over all dimensions of the weight.

    Arguments and results are as in rms_norm; the bias has the weight's shape and dtype.
    return_stats appends the mean and the inverse deviation.
    """
    return _norm("layer_norm", True, x, weight, bias, eps, residual, return_stats)


@dataclasses.dataclass(frozen=True)
class _Spec:
    """One direction of a norm; python/src/torch/norm.cpp says what its operands and results are."""

    layer: bool
    weight: bool
    bias: bool
    residual: bool
    eps: float
    backward: bool = False
    dsum: bool = False


class _Site:
    """One spec and the entry of its kernels."""

    def __init__(self, spec):
        self.spec = spec
        self.op = ("layer_norm" if spec.layer else "rms_norm") + "_backward" * spec.backward
        self.text = json.dumps(dataclasses.asdict(spec))
        self._call = _core.TorchNorm(**dataclasses.asdict(spec))

    def __call__(self, operands):
        return self._call(self, operands)

    def named(self, operands):
        spec = self.spec
        names = (
            [("sum", True), ("deviation", True), ("mean", spec.layer)]
            if spec.backward
            else [("x", True)]
        )
        names += [("weight", spec.weight), ("bias", spec.bias)]
        names += (
            [("dy", True), ("dsum", spec.dsum)] if spec.backward else [("residual", spec.residual)]
        )
        return dict(zip((n for n, present in names if present), operands, strict=True))

    def results(self, *operands):
        """Arguments of torch.empty_strided for each result; BadInput if an operand does not fit."""
        spec, named = self.spec, self.named(operands)
        x = named["sum" if spec.backward else "x"]
        weight = named.get("weight")
        if not spec.backward:
            _check(self.op, x, weight, named.get("bias"), named.get("residual"))
        dims = 1 if weight is None else weight.dim()
        rows = x.shape[: x.dim() - dims]
        dtype = x.dtype if weight is None else weight.dtype
        like_x = _dense(x.shape, x.dtype, x.device)
        if spec.backward:
            like_weight = _dense(x.shape[x.dim() - dims :], dtype, x.device)
            return [like_x, *[like_weight] * (spec.weight + spec.bias)]
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        stats = _dense(rows, wide, x.device)
        y = _dense(x.shape, dtype, x.device)
        return [y, *[like_x] * spec.residual, stats, *[stats] * spec.layer]


_by_spec = Memo("norms of PyTorch", 1024)
_by_text = Memo("norms of PyTorch by their text", 1024)


def _site(spec):
    return _by_spec.find(spec) or _by_spec.put(spec, _Site(spec))


def _parsed(text):
    return _by_text.find(text) or _by_text.put(text, _site(_Spec(**json.loads(text))))


def _dense(shape, dtype, device):
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    return (tuple(shape), tuple(strides)), {"dtype": dtype, "device": device}


def _type(x):
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def _check(op, x, weight, bias, residual):
    def refuse(text):
        raise _errors.BadInput(f"[{op}] {text}")

    for name, array in (("x", x), ("weight", weight), ("bias", bias), ("residual", residual)):
        if array is None:
            continue
        if array.dtype not in _FLOATS:
            refuse(
                f"expected {name} of float32, float64, float16 or bfloat16 but got {_type(array)}"
            )
        if array.device != x.device:
            refuse(f"expected {name} on {x.device}, the device of x, but got {array.device}")
    if x.dim() < 1:
        refuse("expected x of rank 1 or more but got a scalar")
    if weight is not None:
        dims = weight.dim()
        if not 1 <= dims <= x.dim() or x.shape[x.dim() - dims :] != weight.shape:
            refuse(
                f"expected a weight whose shape ends that of x, {_type(x)}, but got {_type(weight)}"
            )
    if bias is not None:
        if weight is None:
            refuse("expected a weight with the bias but got none")
        if bias.shape != weight.shape or bias.dtype != weight.dtype:
            refuse(
                f"expected bias of the shape and dtype of weight, {_type(weight)}, but got "
                f"{_type(bias)}"
            )
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        refuse(
            f"expected residual of the shape and dtype of x, {_type(x)}, but got {_type(residual)}"
        )


# ---- Operators and autograd.

_ops.library.define("norm(Tensor[] operands, str site) -> Tensor[]", tags=_ops.TAGS)


def _implementation(operands, site):
    site = _parsed(site)
    results = site(operands)
    if results is None:
        operands = [_ops.plain(x) for x in operands]
        results = site(operands)
    if results is None:
        site.results(*operands)
        raise TypeError(f"[{site.op}] expected plain tensors but got {list(map(type, operands))}")
    return list(results)


def _fake(operands, site):
    site = _parsed(site)
    return [operands[0].new_empty_strided(*a, **k) for a, k in site.results(*operands)]


for _key in ("CPU", "CUDA"):
    _ops.library.impl("norm", _implementation, _key)
torch.library.register_fake("tilewright::norm", _fake, lib=_ops.library)
_operator = torch.ops.tilewright.norm.default


def _run(spec, operands):
    site = _site(spec)
    if _ops.is_plain():
        results = site(operands)
        if results is not None:
            return results
    return tuple(_operator(operands, site.text))


class _Norm(torch.autograd.Function):
    """apply(spec, x, weight, bias, residual) -> all results; some operands may be None."""

    @staticmethod
    def forward(spec, *given):
        return tuple(_run(spec, [x for x in given if x is not None]))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.spec, x, weight, bias, _ = inputs
        ctx.set_materialize_grads(False)
        total = output[1] if ctx.spec.residual else x
        stats = output[1 + ctx.spec.residual :]
        ctx.mark_non_differentiable(*stats)
        ctx.save_for_backward(total, *stats, *(t for t in (weight, bias) if t is not None))

    @staticmethod
    def backward(ctx, dy, *rest):
        spec = ctx.spec
        dsum = rest[0] if spec.residual else None
        if dy is None and dsum is None:
            return (None,) * 5
        saved = list(ctx.saved_tensors)
        if dy is None:
            dtype = saved[2 + spec.layer].dtype if spec.weight else saved[0].dtype
            dy = torch.zeros_like(saved[0], dtype=dtype)
        backward = dataclasses.replace(spec, backward=True, dsum=dsum is not None)
        operands = [*saved, dy.contiguous(), *(() if dsum is None else (dsum.contiguous(),))]
        dx, *others = _NormBackward.apply(backward, *operands)
        dweight = others.pop(0) if spec.weight else None
        dbias = others.pop(0) if spec.bias else None
        return None, dx, dweight, dbias, dx if spec.residual else None

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError(
            f"[{'layer_norm' if ctx.spec.layer else 'rms_norm'}] expected derivatives in reverse "
            "mode (torch.func.grad, vjp) but got forward mode (jvp)"
        )

    @staticmethod
    def vmap(info, in_dims, spec, *given):
        return _one_by_one(_Norm, info, in_dims, spec, given)


class _NormBackward(torch.autograd.Function):
    """apply(spec, *operands) -> gradients."""

    @staticmethod
    def forward(spec, *operands):
        return tuple(_run(spec, operands))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.op = "layer_norm" if inputs[0].layer else "rms_norm"

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(
            f"[{ctx.op}] expected at most first derivatives but got a second one"
        )

    @staticmethod
    def vmap(info, in_dims, spec, *operands):
        return _one_by_one(_NormBackward, info, in_dims, spec, operands)


def _one_by_one(function, info, in_dims, spec, given):
    moved = [
        x if dim is None else x.movedim(dim, 0) for x, dim in zip(given, in_dims[1:], strict=True)
    ]
    rows = [
        function.apply(
            spec,
            *(x if d is None else x[i] for x, d in zip(moved, in_dims[1:], strict=True)),
        )
        for i in range(info.batch_size)
    ]
    results = tuple(torch.stack(column) for column in zip(*rows, strict=True))
    return results, (0,) * len(results)


def _norm(op, layer, x, weight, bias, eps, residual, return_stats):
    given = (x, weight, bias, residual)
    for name, tensor in zip(("x", "weight", "bias", "residual"), given, strict=True):
        if not isinstance(tensor, torch.Tensor) and (name == "x" or tensor is not None):
            raise TypeError(
                f"[{op}] expected {name} to be a tensor but got {type(tensor).__name__}"
            )
    if bias is not None and weight is None:
        raise _errors.BadInput(f"[{op}] expected a weight with the bias but got none")
    if x.is_nested or (residual is not None and residual.is_nested):
        from . import _nested

        return _nested.norm(
            lambda x, w, b, rest: _norm(op, layer, x, w, b, eps, rest, return_stats),
            *(op, x, weight, bias, residual),
        )
    if torch.compiler.is_dynamo_compiling():
        from . import _marker

        results = _marker.norm(layer, _eps(op, eps), *given)
    else:
        results = apply(layer, _eps(op, eps), *given)
    results = tuple(results)
    sums = residual is not None
    kept = results[: 1 + sums]
    if return_stats:
        kept = (*kept, *results[1 + sums :][::-1])
    return kept[0] if len(kept) == 1 else kept


def apply(layer, eps, *given):
    """y, the sum with a residual, the inverse deviation and, for layer_norm, the mean."""
    if _sharded.is_sharded(given):
        return _sharded.norm(functools.partial(apply, layer, eps), *given)
    _, weight, bias, residual = given
    spec = _Spec(layer, weight is not None, bias is not None, residual is not None, eps)
    if torch.is_grad_enabled() or not _ops.is_plain():
        return _Norm.apply(spec, *given)
    return _run(spec, [t for t in given if t is not None])


def _eps(op, eps):
    try:
        eps = float(eps)
    except (TypeError, ValueError):
        raise TypeError(f"[{op}] expected eps to be a number but got {eps!r}") from None
    if not 0 <= eps < float("inf"):
        raise _errors.BadInput(f"[{op}] expected a finite eps of at least 0 but got {eps}")
    return eps
