"""Result dtypes and shapes of operations, from small tensors that stand for their inputs."""

import math

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .._memo import Memo
from ._recording import mapped, shape_of, tensors_of

_SMALL = 64  # elements up to which an operation on the CPU is the fastest way to its result's type
_stand_ins = Memo("stand-ins of tensors", 256)


def stand_in(x, device="meta"):
    """A tensor of x's shape and dtype, of ones or without memory; kept for reuse."""
    if not isinstance(x, torch.Tensor):
        return x
    key = shape_of(x), x.dtype, device
    stand = _stand_ins.find(key)
    if stand is None:
        with _disable_current_modes(), torch.inference_mode(False):
            stand = _stand_ins.put(key, torch.ones(key[0], dtype=key[1], device=device))
    return stand


def result_of(func, name, args, kwargs, mutated):
    """The result of an operation on stand-ins, for its dtype and shape.

    Torch's meta kernels are written in Python: they take a hundred microseconds, and import Dynamo.
    """
    tensors = tensors_of(kwargs, tensors_of(args, []))
    if name == "aten::index" and _reads_elements(*args):
        return stand_in(torch.empty((), dtype=args[0].dtype, device="meta"))
    small = all(math.prod(shape_of(t)) <= _SMALL for t in tensors)
    if small and not mutated and name != "aten::index" and not _has_symbols((args, kwargs)):
        try:
            return _on(torch.device("cpu"), func, args, kwargs)
        except (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError):
            pass  # not available on the CPU, or not for these values
    result = _on(torch.device("meta"), func, args, kwargs)
    if mutated and shape_of(result) != shape_of(args[0]):
        _stand_ins.clear()  # the operation has changed the shape of one
    return result


def _has_symbols(x):
    if isinstance(x, tuple | list):
        return any(map(_has_symbols, x))
    if isinstance(x, dict):
        return any(map(_has_symbols, x.values()))
    return isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool)


def _reads_elements(tensor, indices):
    """Whether every dimension is indexed by an integer."""
    return len(indices) == tensor.dim() and all(
        i is not None and i.dim() == 0 and i.dtype not in (torch.bool, torch.uint8) for i in indices
    )


def _on(device, func, args, kwargs):
    def stand(x):
        return stand_in(x, device.type)

    options = mapped(kwargs, torch.Tensor, stand)
    if "device" in options:
        options["device"] = device
    return func(*mapped(args, torch.Tensor, stand), **options)
