"""Derivatives of score mods by autograd, for mods with derivative rules of their own.

Other mods are differentiated in the tile IR. A mod with an autograd.Function, `detach` or `no_grad`
is run again on wrapper tensors that require gradients, including its backward pass.
"""

import numpy as np
import torch

from .._numbers import operand
from .._values import Scattered
from ._recorder import Recorder, Traced, outside_of_modes


def translate(core, function, values, tables, device, scalars_of, width, reads):
    """(text, gathers): the derivative by autograd, custom functions included."""
    place = {slot: i for i, slot in enumerate(reads)}
    gathers = []

    def body(*cores):
        gathers.clear()
        *cores, cotangent = cores
        with outside_of_modes() as levels:
            recorder = Recorder(values, tables, device, replayed=True)
            recorder.levels = levels
            scalars = scalars_of(recorder, cores)
            scalars[0].requires_grad_()
            with recorder.running():
                out = function(*scalars)
                slots = [s for s in reads if _differs(recorder, tables, s)]
                inputs = [recorder.wholes.get(s, tables.leaves.get(s)) for s in slots]
                gradients = [None] * (1 + len(slots))
                if isinstance(out, torch.Tensor) and out.requires_grad:
                    seed = Traced(values.number(cotangent, out.dtype), (), out.dtype, device)
                    gradients = torch.autograd.grad(
                        out, [scalars[0], *inputs], seed, allow_unused=True
                    )
            zero = values.dtypes.constant(0.0, torch.float32)
            first = zero if gradients[0] is None else recorder.value(gradients[0])
            results = [operand(values.element(first))]
            for slot, gradient in zip(slots, gradients[1:], strict=True):
                if gradient is None:
                    continue
                for index, value in _entries(recorder, gradient):
                    gathers.append(place[slot])
                    results += [operand(i) for i in index]
                    results.append(operand(values.element(value)))
        return results

    text = core.derivative_ir(body, width)
    return text, " ".join(map(str, gathers))


def _differs(recorder, tables, slot):
    tensor = recorder.wholes.get(slot)
    if tensor is None:
        tensor = tables.leaves.get(slot)
    return tensor is not None and tensor.requires_grad


def _entries(recorder, gradient):
    value = recorder.value(gradient)
    if isinstance(value, Scattered):
        return value.entries
    array = recorder.values.objects(value)
    return [([recorder.values.index(i) for i in at], array[at]) for at in np.ndindex(*array.shape)]
