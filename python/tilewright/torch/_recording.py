"""The result of recording a mod, and how it is bound to other captures."""

import sys
from typing import NamedTuple

import torch

from .. import _core
from .._functions import NONE, TracedMod
from ._values import TorchValues


class Call(NamedTuple):
    """An operation on captures alone; tensors among its arguments are slots."""

    function: object
    arguments: tuple
    options: dict
    results: tuple


class Slot(NamedTuple):
    """In the arguments of a Call: the tensor of this slot."""

    number: int


class Recording:
    """A recorded mod, and how the tensors that its text reads are computed from its captures."""

    def __init__(self, text, leaves, constants, calls, reads, derivative, gathers, fixed):
        self.text, self.derivative, self.gathers = text, derivative, gathers
        self.leaves = leaves  #: {slot: tensor} that the function captured
        self.constants = constants  #: {slot: tensor} that the function made, on the CPU
        self._placed = {}  # device -> the constants there
        self.calls, self.reads = calls, reads
        self.fixed_shapes = fixed  #: whether it depends on the shapes of its captures

    def bind(self, leaves, device):
        """The TracedMod for other captures, {slot: tensor}, in a call on a device."""
        if not self.calls and not self.constants:
            arrays = tuple([leaves[slot] for slot in self.reads])
            return TracedMod(self.text, arrays, self.derivative, self.gathers)
        device = next((t.device for t in leaves.values() if t.device.type != "cpu"), device)
        tensors = {**leaves, **self._constants_on(torch.device(device))}

        def given(x):
            return mapped(x, Slot, lambda slot: tensors[slot.number])

        for call in self.calls:
            results = call.function(*given(call.arguments), **given(call.options))
            results = results if isinstance(results, tuple | list) else (results,)
            tensors.update(zip(call.results, results, strict=True))
        arrays = tuple([tensors[slot] for slot in self.reads])
        return TracedMod(self.text, arrays, self.derivative, self.gathers)

    def _constants_on(self, device):
        """The constants on a device, copied there once: each copy waits for the GPU."""
        if self.constants and torch._C._len_torch_dispatch_stack():  # constants of a tracer's graph
            lift = torch.ops.aten.lift_fresh.default
            return {slot: lift(constant).to(device) for slot, constant in self.constants.items()}
        if device.type == "cpu" or not self.constants:
            return self.constants
        placed = self._placed.get(device)
        if placed is None:
            placed = {slot: constant.to(device) for slot, constant in self.constants.items()}
            self._placed[device] = placed
        return placed

    def without_tensors(self):
        """The same, without the caller's tensors."""
        made = Recording(
            self.text, dict.fromkeys(self.leaves), self.constants, self.calls, self.reads,
            self.derivative, self.gathers, self.fixed_shapes,
        )  # fmt: skip
        made._placed = self._placed
        return made


def mapped(x, kind, function):
    """Nested tuples, lists and dicts with `function` applied to every object of a type."""
    if isinstance(x, kind):
        return function(x)
    if isinstance(x, list | tuple):
        return type(x)([mapped(y, kind, function) for y in x])
    if isinstance(x, dict):
        return {k: mapped(y, kind, function) for k, y in x.items()}
    return x


def tensors_of(x, into):
    if isinstance(x, torch.Tensor):
        into.append(x)
    elif isinstance(x, list | tuple):
        for y in x:
            tensors_of(y, into)
    elif isinstance(x, dict):
        for y in x.values():
            tensors_of(y, into)
    return into


def shape_of(x):
    """The shape as numbers; for a symbolic one those of the traced tensor, without a guard."""
    return tuple([n if type(n) is int else _hint(n) for n in x.shape])


def _hint(size):
    hint = getattr(getattr(size, "node", None), "hint", None)
    return hint if type(hint) is int else int(size)


def intersection(masks):
    """One recorded mask for several."""
    if len(masks) <= 1:
        return masks[0] if masks else NONE
    arrays = [x for mask in masks for x in mask.arrays]
    values = TorchValues(torch.float32)
    stands = iter(
        [values.captured(f"array{i}", x.shape, x.dtype).core for i, x in enumerate(arrays)]
    )
    mods = [_core.Mod.from_ir(mask.text, [next(stands) for _ in mask.arrays]) for mask in masks]
    both = mods[0]
    for mod in mods[1:]:
        both = both & mod
    order = [int(c.name.removeprefix("array")) for c in both.captures()]
    return TracedMod(sys.intern(both.ir()), tuple(arrays[i] for i in order))
