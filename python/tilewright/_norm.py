"""RMSNorm and LayerNorm with their pullbacks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._arrays import Array, number, shown_fields, stream_of, to_array, to_tensor
from ._changes import Unchanged
from ._synonyms import names_synonyms


class NormGradients(NamedTuple):
    """Gradients of a norm; None for arguments that the forward pass was called without."""

    x: np.ndarray  #: shape and dtype of x
    weight: np.ndarray | None  #: shape and dtype of the weight
    bias: np.ndarray | None  #: likewise; layer_norm only
    residual: np.ndarray | None  #: shape and dtype of x

    def __repr__(self) -> str:
        return shown_fields(self)


@names_synonyms
def rms_norm(
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-5,
    residual: Array | None = None,
    return_stats: bool = False,
) -> Any:
    """``x / sqrt(mean(x**2) + eps) * weight`` over all dimensions of the weight.

    x: floats of any shape and strides. weight: of the shape of x's last dimensions; without one the
    norm is over the last axis. residual: of x's shape and dtype, added before the norm.

    Returns y, of x's shape and the weight's dtype (x's without a weight); with a residual ``(y, x +
    residual)``. return_stats appends the inverse deviation of each row (f32; f64 for f64 x). Raises
    ValueError or TypeError if an argument does not fit.
    """
    with stream_of(x):
        forward, _ = _forward("rms_norm", False, x, weight, None, eps, residual)
        return _results(forward, x, residual is not None, return_stats, False)


@names_synonyms
def layer_norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    residual: Array | None = None,
    return_stats: bool = False,
) -> Any:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over all dimensions of the weight.

    Arguments and results are as in rms_norm; the bias has the weight's shape and dtype.
    return_stats appends the mean and the inverse deviation.
    """
    with stream_of(x):
        forward, _ = _forward("layer_norm", True, x, weight, bias, eps, residual)
        return _results(forward, x, residual is not None, return_stats, True)


@names_synonyms
def rms_norm_vjp(
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-5,
    residual: Array | None = None,
    return_stats: bool = False,
) -> tuple[Any, Callable[..., NormGradients]]:
    """``(rms_norm(...), pullback)``; ``pullback(dy, dsum=None)`` gives NormGradients.

    dy: of y's shape and dtype. dsum: the gradient of x + residual, of x's shape and dtype. Raises
    ValueError if x, the weight or a result that the pullback reads was changed in place meanwhile.
    """
    return _vjp("rms_norm", False, x, weight, None, eps, residual, return_stats)


@names_synonyms
def layer_norm_vjp(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    residual: Array | None = None,
    return_stats: bool = False,
) -> tuple[Any, Callable[..., NormGradients]]:
    """``(layer_norm(...), pullback)``; ``pullback(dy, dsum=None)`` gives NormGradients."""
    return _vjp("layer_norm", True, x, weight, bias, eps, residual, return_stats)


def _forward(op, layer, x, weight, bias, eps, residual):
    arguments = {"x": x, "weight": weight, "residual": residual}
    if layer:
        arguments["bias"] = bias
    tensors = {name: to_tensor(op, name, value) for name, value in arguments.items()}
    return getattr(_core, op)(eps=number(op, "eps", eps), **tensors), tensors


def _results(forward, like, has_residual, return_stats, layer):
    results = [to_array(forward.y, like)]
    if has_residual:
        results.append(to_array(forward.sum, like))
    if return_stats:
        if layer:
            results.append(to_array(forward.mean, like))
        results.append(to_array(forward.inverse_deviation, like))
    return results[0] if len(results) == 1 else tuple(results)


def _vjp(op, layer, x, weight, bias, eps, residual, return_stats):
    with stream_of(x):
        forward, tensors = _forward(op, layer, x, weight, bias, eps, residual)
        results = _results(forward, x, residual is not None, return_stats, layer)
        normalised = "x" if residual is None else "the result `x + residual`"
        unchanged = Unchanged(
            [
                (normalised, forward.sum, x if residual is None else None),
                ("weight", tensors["weight"], weight),
                ("the inverse deviation", forward.inverse_deviation, None),
                ("the mean", forward.mean, None),
            ]
        )

    def pullback(dy, dsum=None):
        backward = op + "_backward"
        if dsum is not None and residual is None:
            raise ValueError(f"[{backward}] expected dsum only with a residual but got one without")
        with stream_of(x):
            unchanged.check(backward)
            gradients = getattr(_core, backward)(
                forward=forward,
                dy=to_tensor(backward, "dy", dy),
                dsum=to_tensor(backward, "dsum", dsum),
                eps=eps,
                **{name: tensor for name, tensor in tensors.items() if name != "x"},
            )
            dx = to_array(gradients.x, x)
            return NormGradients(
                dx,
                to_array(gradients.weight, x),
                to_array(gradients.bias, x),
                dx if residual is not None else None,
            )

    return results, pullback
