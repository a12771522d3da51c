"""The short way to the recording of a mod that reads tensors and numbers alone.

What a snapshot of the environment would find is compared place by place, without making one.
"""

import builtins
import types

import torch


class OpaqueError(Exception):
    """The function reads what cannot be compared from one call to the next."""


_known_names = {}  # id of a code object -> the object, so that the id stays its own, and the names
library_modules = {}  # id -> module


def names_of(code):
    """Globals and attributes that a code object and those inside of it name."""
    known = _known_names.get(id(code))
    if known is not None:
        return known[1]
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_of(constant)
    if len(_known_names) > 4096:
        _known_names.clear()
    names = frozenset(names)
    _known_names[id(code)] = code, names
    return names


class _Plan:
    """What a snapshot of functions of one code would find; `tensors` looks whether it is that."""

    __slots__ = ("code", "kept", "steps")

    def __init__(self, function, snapshot, kept):
        self.code, self.kept, self.steps = function.__code__, kept, []
        self._add(function)
        found = self.tensors(function)
        tensors = snapshot.tensors
        if found is None or len(found) != len(tensors):
            raise OpaqueError
        if any(a is not b for a, b in zip(found, tensors, strict=True)):
            raise OpaqueError

    def _add(self, function):
        """Steps for what a function reads, in the order of a snapshot's walk."""
        if function.__defaults__ or function.__kwdefaults__:
            raise OpaqueError
        for i, cell in enumerate(function.__closure__ or ()):
            self._expect(i, cell.cell_contents)
        scope = function.__globals__
        for name in names_of(function.__code__):
            if name in scope:
                self._expect(name, scope[name])
            elif hasattr(builtins, name):
                self.steps.append((name, _IS, None))  # nobody has put another in its place

    def _expect(self, place, value):
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            where = value.is_cpu, value.device.type, value.requires_grad
            self.steps.append((place, _IS_TENSOR, (kind, value.dtype, value.dim(), *where)))
        elif kind in (bool, str, type(None)) or id(value) in library_modules:
            self.steps.append((place, _IS, value))
        elif kind is int or (kind is float and value != 0 and value == value):
            self.steps.append((place, _EQUALS, value))
        else:
            raise OpaqueError

    def tensors(self, function):
        """The tensors that it reads; None where a snapshot would differ."""
        cells, scope = function.__closure__, function.__globals__
        found = []
        for place, how, expected in self.steps:
            value = cells[place].cell_contents if type(place) is int else scope.get(place)
            if how is _IS_TENSOR:
                kind, dtype, rank, on_cpu, device, gradient = expected
                if (
                    type(value) is not kind
                    or value.dtype is not dtype
                    or value.dim() != rank
                    or value.is_cpu is not on_cpu
                    or value.requires_grad is not gradient
                    or not (on_cpu or value.device.type == device)
                ):
                    return None
                for other in found:
                    if other is value:
                        return None
                found.append(value)
            elif how is _IS:
                if value is not expected:
                    return None
            elif type(value) is not type(expected) or value != expected:
                return None
        return found


_IS, _EQUALS, _IS_TENSOR = object(), object(), object()
_plans = {}  # (id of the code, is_mask, whether scores are float64) -> plans of that code
_MOST_PLANS = 4096


def find(key, function):
    """The recording of a function and the tensors that it reads, by a plan; None without one."""
    for plan in _plans.get(key, ()):
        try:
            tensors = plan.tensors(function)
        except (ValueError, TypeError, IndexError):  # an empty cell
            return None
        if tensors is not None:
            return plan.kept.bind(tensors)
    return None


def remember(key, function, snapshot, kept):
    try:
        plan = _Plan(function, snapshot, kept)
    except OpaqueError:
        return
    if len(_plans) >= _MOST_PLANS:
        _plans.clear()
    known = _plans.get(key, ())
    _plans[key] = (plan, *known[:3])


def clear():
    _plans.clear()
