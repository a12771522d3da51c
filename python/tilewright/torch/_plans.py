"""A fast path to the recording of a mod that reads only tensors and numbers.

Compares what a snapshot of the environment would find place by place, without making one.
"""

import builtins
import types

import torch

from .. import _core
from .._memo import Memo


class OpaqueError(Exception):
    """The function reads something that cannot be compared from one call to the next."""


# id of a code object -> the object, which keeps the id from being reused, and the names
_known_names = Memo("names of code", 4096)
library_modules = {}  # id -> module


def names_of(code):
    """Globals and attributes that a code object, and those nested in it, name."""
    known = _known_names.find(id(code))
    if known is not None:
        return known[1]
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_of(constant)
    return _known_names.put(id(code), (code, frozenset(names)))[1]


class _Plan:
    """What a snapshot of functions with one code would find; `core` checks whether that holds."""

    __slots__ = ("code", "core", "kept")

    def __init__(self, function, snapshot, kept):
        self.code, self.kept = function.__code__, kept
        self.core = _core.ModPlan(list(_steps(function)))
        found, tensors = self.core.tensors(function), snapshot.tensors
        if found is None or len(found) != len(tensors):
            raise OpaqueError
        if any(a is not b for a, b in zip(found, tensors, strict=True)):
            raise OpaqueError


def _steps(function):
    """What a function reads, in the order of a snapshot's walk."""
    if function.__defaults__ or function.__kwdefaults__:
        raise OpaqueError
    for i, cell in enumerate(function.__closure__ or ()):
        yield i, *_expected(cell.cell_contents)
    scope = function.__globals__
    for name in names_of(function.__code__):
        if name in scope:
            yield name, *_expected(scope[name])
        elif hasattr(builtins, name):
            yield name, _SAME, None  # nothing has replaced it


def _expected(value):
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return _TENSOR, (kind, value.requires_grad, value)
    if kind in (bool, str, type(None)) or id(value) in library_modules:
        return _SAME, value
    if kind is int or (kind is float and value != 0 and value == value):
        return _EQUAL, value
    raise OpaqueError


_SAME, _EQUAL, _TENSOR = 0, 1, 2  # ModPlan::Kind
# (id of the code, is_mask, whether scores are float64) -> plans of that code
_plans = Memo("plans of mods", 4096)


def find(key, function, device):
    """The recording of a function and the tensors that it reads, by a plan, for a call on a device;
    None without one."""
    for plan in _plans.find(key) or ():
        tensors = plan.core.tensors(function)
        if tensors is not None:
            return plan.kept.bind(tensors, device)
    return None


def key_of(function, is_mask, is_double):
    return id(function.__code__), is_mask, is_double


def remember(key, function, snapshot, kept):
    try:
        plan = _Plan(function, snapshot, kept)
    except (OpaqueError, TypeError):
        return
    known = _plans.find(key) or ()
    _plans.replace(key, (plan, *known[:3]))


def known_mod(function, is_mask, is_double):
    """What KnownCalls.remember takes for a mod: (function, plan, places of the tensors that are
    operands); None if its recording needs more than a plan."""
    if function is None:
        return None, None, ()
    if type(function) is not types.FunctionType:
        return None
    for plan in _plans.find(key_of(function, is_mask, is_double)) or ():
        if plan.core.tensors(function) is not None:
            return None if plan.kept.order is None else (function, plan.core, plan.kept.order)
    return None


def clear():
    _plans.clear()
