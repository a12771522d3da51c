"""Keeps recordings of mods for as long as what their functions read stays the same.

What a function reads is known before it runs: its code, closure, defaults and globals, and those of
the functions that it calls. For tensors, dtype and rank matter, not identity: a function made anew
around other tensors finds its recording. A number that changes becomes an operand. Functions that
cannot be analysed are recorded at each call.
"""

import collections
import functools
import math
import random
import sys
import types

import numpy as np
import torch

from .. import _core
from .._errors import UnsupportedError
from .._functions import TracedMod
from .._memo import Memo
from . import _mods, _plans
from ._mods import recorded
from ._plans import OpaqueError, library_modules, names_of

_MOST_FAMILIES, _MOST_OF_A_FAMILY = 1024, 64


class _Operand:
    """In a copied environment: a number that is replaced by the operand of this index."""

    def __init__(self, place):
        self.place = place


_LOOKS = frozenset(("getattr", "eval", "exec", "globals", "locals", "vars", "setattr", "__dict__"))
_NAMES_TYPES = frozenset(("isinstance", "type", "callable", "hasattr"))
_PLAIN = frozenset(
    (str, bytes, type(None), complex, torch.dtype, torch.device, slice, range, type(Ellipsis))
)
_LIBRARIES = (
    "torch",
    "math",
    "numpy",
    "operator",
    "functools",
    "builtins",
    "jax",
    "typing",
    "tilewright",
)


def _random_kinds():
    """The types of random number generators. NumPy imports its own when they are first named, which
    takes milliseconds."""
    numpys = sys.modules.get("numpy.random")
    return (random.Random, *((numpys.RandomState, numpys.Generator) if numpys else ()))


class _Snapshot:
    """The environment of one function: `key`, `tensors` and `numbers`, in the order of a walk."""

    __slots__ = ("_objects", "_seen", "kept", "key", "names", "numbers", "tensors")

    def __init__(self, function):
        self.key, self.tensors, self.numbers, self.kept = [], [], [], []
        self._seen, self._objects, self.names = {}, [], set()
        self.walk(function)
        if self._objects:
            self._look_up()
        if not _LOOKS.isdisjoint(self.names):
            raise OpaqueError
        if "random" in self.names and id(np) in self.key:
            self._refuse_random("numpy.random")

    def _look_up(self):
        """Looks up the functions' names on the objects."""
        looked_up = {}  # what was already looked up on each object
        while True:  # attributes may be functions, which name further attributes
            names, count = frozenset(self.names), len(self._objects)
            for value in list(self._objects):
                known = looked_up.get(id(value), frozenset())
                looked_up[id(value)] = names
                self._attributes(value, names - known)
            if names == self.names and count == len(self._objects):
                break

    def walk(self, value):
        kind = type(value)
        key = self.key
        if kind is int or kind is float:
            key.append(kind)
            self.numbers.append(value)
            return
        if kind is bool or kind in _PLAIN:
            key.append(kind)
            key.append(repr(value) if kind is complex or kind is slice else value)
            return
        place = id(value)
        if place in library_modules:
            key.append(place)
            return
        seen = self._seen.get(place)
        if seen is not None:
            key.append(seen)
            return
        self._seen[place] = -1 - len(self._seen)
        walk = _WALKS.get(kind)
        if walk is not None:
            walk(self, value)
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        else:
            self._other(value, kind)

    def _tensor(self, value):
        self.tensors.append(value)
        place = "" if value.is_cpu else value.device.type
        self.key += (type(value), value.dtype, value.dim(), place, value.requires_grad)

    def _sequence(self, value):
        self.key += (type(value), len(value))
        for x in value:
            self.walk(x)

    def _dict(self, value):
        self.key += (dict, len(value))
        for name, x in value.items():
            self.walk(name)
            self.walk(x)

    def _partial(self, value):
        self.key.append(functools.partial)
        for x in (value.func, value.args, value.keywords):
            self.walk(x)

    def _method(self, value):
        self.key.append(types.MethodType)
        self.walk(value.__func__)
        self.walk(value.__self__)

    def _other(self, value, kind):
        key = self.key
        snapshot = getattr(kind, "__tilewright_environment__", None)
        if snapshot is not None:
            key.append(kind)
            for x in snapshot(value):
                self.walk(x)
        elif isinstance(value, np.generic):
            key += (kind, value.item(), str(value))
        elif isinstance(value, np.ndarray):
            if value.nbytes > 4096 or value.dtype.hasobject:
                raise OpaqueError
            key += (value.dtype, value.shape, value.tobytes())
        elif isinstance(value, types.ModuleType):
            if value is random or value is sys.modules.get("numpy.random"):
                self._refuse_random(value.__name__)
            self._identity(value)
            if (value.__name__ or "").startswith(_LIBRARIES):
                library_modules[id(value)] = value
            else:
                self._objects.append(value)
        elif isinstance(value, _core.Mod | types.BuiltinFunctionType | type(torch.relu)):
            self._identity(value)
            owner = getattr(value, "__self__", None)
            if isinstance(owner, _random_kinds()):
                self._refuse_random(value.__name__)
            if owner is not None and not isinstance(owner, type | types.ModuleType):
                self.walk(owner)
        elif callable(value) and type(value).__module__.startswith(("torch._ops", "torch._C")):
            self._identity(value)
        elif isinstance(value, type):
            self._identity(value)
            if not value.__module__.startswith(_LIBRARIES):
                self._objects.append(value)
        elif kind is frozenset or kind is set:
            if not all(isinstance(x, str | int) for x in value):
                raise OpaqueError
            key += (kind, frozenset(value))
        else:
            self._identity(kind)
            self._objects.append(value)

    @staticmethod
    def _refuse_random(name):
        raise UnsupportedError(
            f"expected a mod without random numbers but it names {name}; attention has dropout= and "
            "seed= of its own"
        )

    def _identity(self, value):
        self.kept.append(value)
        self.key.append(id(value))

    def _function(self, function):
        code = function.__code__
        self.kept.append(code)
        self.key.append(id(code))
        if function.__defaults__:
            self.walk(function.__defaults__)
        if function.__kwdefaults__:
            self.walk(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                contents = cell.cell_contents
            except ValueError:
                raise OpaqueError from None
            self.walk(contents)
        names = names_of(code)
        self.names |= names
        scope = function.__globals__
        for name in names:
            if name in scope:
                self.key.append(name)
                self.walk(scope[name])

    def _attributes(self, value, names):
        """The attributes of a user's object, class or module that the functions may refer to."""
        kind = type(value)
        is_class = isinstance(value, type)
        for base in kind.__mro__ if not is_class else ():
            looks = vars(base).keys() & {"__getattr__", "__getattribute__", "__slots__"}
            if looks and base not in (object, torch.nn.Module, type, types.ModuleType):
                raise OpaqueError
        if (
            not is_class
            and not isinstance(value, types.ModuleType)
            and not hasattr(value, "__dict__")
        ):
            raise OpaqueError
        own = dict(vars(value))
        if isinstance(value, torch.nn.Module):
            for table in ("_parameters", "_buffers", "_modules"):
                own.update(own.get(table) or {})
        bases = value.__mro__ if is_class else kind.__mro__
        if not is_class and "__call__" in vars(kind):
            names = names | {"__call__"}
        for name in sorted(names):
            if name in own and not isinstance(own[name], classmethod | staticmethod):
                self._attribute(name, own[name])
                continue
            if isinstance(value, types.ModuleType):
                continue
            for base in bases:
                if base is object or base.__module__.startswith(_LIBRARIES):
                    continue
                if name in vars(base):
                    found = vars(base)[name]
                    if isinstance(found, classmethod | staticmethod):
                        found = found.__func__
                    elif isinstance(found, property):
                        found = found.fget
                    self._attribute(name, found)
                    break

    def _attribute(self, name, value):
        self.key.append(name)
        if type(value) in (int, float):  # a number in an object is never made an operand
            self.key += (type(value), repr(value))
        else:
            self.walk(value)


_WALKS = {
    torch.Tensor: _Snapshot._tensor,
    torch.nn.Parameter: _Snapshot._tensor,
    types.FunctionType: _Snapshot._function,
    tuple: _Snapshot._sequence,
    list: _Snapshot._sequence,
    dict: _Snapshot._dict,
    functools.partial: _Snapshot._partial,
    types.MethodType: _Snapshot._method,
}


class _Family:
    """Recordings of functions that differ only in numbers and in the shapes of their captures."""

    __slots__ = ("exact", "kept", "last", "promoted", "refused")

    def __init__(self, snapshot):
        self.kept = snapshot.kept  # so that no id in the key is reused for another object
        self.exact = {}  # (numbers, shapes or None) -> _Kept
        self.promoted = {}  # (places, numbers elsewhere, shapes or None) -> _Kept
        self.refused = set()  # places whose numbers must be known
        self.last = None


class _Kept:
    """A recording, and the environment's tensors that its slots refer to."""

    __slots__ = ("order", "places", "recording")

    def __init__(self, recording, places):
        self.recording, self.places = recording, places
        place_of = dict(places)
        self.order = None  # of the tensors, if the text reads them directly
        if not recording.calls and not recording.constants:
            self.order = [place_of[slot] for slot in recording.reads]

    def bind(self, tensors, device):
        recording = self.recording
        if self.order is not None:
            arrays = tuple([tensors[place] for place in self.order])
            return TracedMod(recording.text, arrays, recording.derivative, recording.gathers)
        return recording.bind({slot: tensors[place] for slot, place in self.places}, device)


_families = Memo("mods of PyTorch", _MOST_FAMILIES)
counts = collections.Counter()  #: "recorded" and "found", for tests


def clear():
    """Drops all recordings."""
    _families.clear()
    _plans.clear()


def traced(
    op, argument, function, is_mask, sizes, score_dtype=torch.float32, device="cpu", checked=False
):
    """Like `_mods.record`, but keeps recordings. On a hit the texts are the same objects. In the
    checked mode nothing is kept, since names of variables and lines would be part of it."""
    if checked or _core.checked():
        return _mods.record(op, argument, function, is_mask, sizes, score_dtype, device, True)
    plan_key = None
    if type(function) is types.FunctionType:
        plan_key = _plans.key_of(function, is_mask, score_dtype is torch.float64)
        result = _plans.find(plan_key, function, device)
        if result is not None:
            counts["found"] += 1
            return result
    try:
        snapshot = _Snapshot(function)
    except OpaqueError:
        counts["recorded"] += 1
        return _mods.record(op, argument, function, is_mask, sizes, score_dtype, device)
    except UnsupportedError as error:
        raise NotImplementedError(f"[{op}] {argument}: {error}") from None
    numbers, tensors = tuple([_exact(n) for n in snapshot.numbers]), snapshot.tensors
    key = (is_mask, score_dtype == torch.float64, *snapshot.key)
    family = _families.find(key) or _families.put(key, _Family(snapshot))
    kept = family.exact.get((numbers, None))
    if kept is not None:
        counts["found"] += 1
        if plan_key is not None:
            _plans.remember(plan_key, function, snapshot, kept)
        return kept.bind(tensors, device)
    shapes = tuple([tuple(t.shape) for t in tensors])
    kept = family.exact.get((numbers, shapes))
    if kept is not None:
        counts["found"] += 1
        return kept.bind(tensors, device)
    if numbers:
        result = _promoted(
            op, argument, function, is_mask, score_dtype, device, snapshot, family, numbers, shapes
        )
        if result is not None:
            return result
    counts["recorded"] += 1
    recording = recorded(op, argument, function, is_mask, score_dtype, device)
    result = recording.bind(recording.leaves, device)
    kept = _kept(recording, tensors)
    if kept is not None:
        _insert(family.exact, (numbers, shapes if recording.fixed_shapes else None), kept)
    family.last = numbers
    return result


def _exact(number):
    """A number in a form that compares exactly: -0.0 is not 0.0, nan is nan."""
    if type(number) is float and (number == 0.0 or number != number):
        return math.copysign(1, number), number == 0
    return number


def _insert(table, key, value):
    if len(table) >= _MOST_OF_A_FAMILY:
        table.pop(next(iter(table)))
    table[key] = value


def _kept(recording, tensors):
    """None if the function got a tensor from something that the snapshot does not see."""
    place_of = {id(t): i for i, t in enumerate(tensors)}
    places = []
    for slot, tensor in recording.leaves.items():
        place = place_of.get(id(tensor))
        if place is None:
            return None
        places.append((slot, place))
    return _Kept(recording.without_tensors(), places)


# ---- Numbers that change become operands.


def _promoted(
    op, argument, function, is_mask, score_dtype, device, snapshot, family, numbers, shapes
):
    """The recording with changed numbers as operands; None if there is and can be none."""
    for (places, others, wanted), kept in family.promoted.items():
        if wanted not in (None, shapes) or _without(numbers, places) != others:
            continue
        counts["found"] += 1
        return kept.bind(_with_numbers(snapshot, places, score_dtype, device), device)
    last = family.last
    if last is None or not _NAMES_TYPES.isdisjoint(snapshot.names):
        return None
    places = tuple(
        i
        for i, (a, b) in enumerate(zip(numbers, last, strict=True))
        if a != b and i not in family.refused and _fits(snapshot.numbers[i])
    )
    if not places:
        return None
    tensors = _with_numbers(snapshot, places, score_dtype, device)
    stands = dict(zip(places, tensors[len(snapshot.tensors) :], strict=True))
    try:
        copy = _Copy(snapshot, stands).function(function)
        counts["recorded"] += 1
        recording = recorded(op, argument, copy, is_mask, score_dtype, device)
    except (TypeError, ValueError, IndexError, NotImplementedError, RuntimeError, AttributeError):
        family.refused.update(places)  # a loop, a shape or a branch needs the number itself
        return None
    kept = _kept(recording, tensors)
    if kept is None:
        family.refused.update(places)
        return None
    wanted = shapes if recording.fixed_shapes else None
    _insert(family.promoted, (places, _without(numbers, places), wanted), kept)
    return kept.bind(tensors, device)


def _fits(number):
    return type(number) is float or -(1 << 62) < number < 1 << 62


def _without(numbers, places):
    return tuple([n for i, n in enumerate(numbers) if i not in places])


def _with_numbers(snapshot, places, score_dtype, device):
    made = []
    for place in places:
        number = snapshot.numbers[place]
        wide = torch.float64 if score_dtype == torch.float64 else torch.float32
        dtype = torch.int64 if type(number) is int else wide
        made.append(torch.full((), number, dtype=dtype, device=device))
    return [*snapshot.tensors, *made]


class _Copy:
    """An environment copied with some of its numbers replaced, in the order of the snapshot."""

    def __init__(self, snapshot, stands):
        self._stands, self._next, self._seen = stands, 0, {}

    def function(self, value):
        return self._of(value)

    def _of(self, value):
        kind = type(value)
        if kind is int or kind is float:
            place = self._next
            self._next += 1
            return self._stands.get(place, value)
        if kind is bool or kind in _PLAIN or isinstance(value, torch.Tensor):
            return value
        if id(value) in self._seen:
            return self._seen[id(value)]
        self._seen[id(value)] = value
        made = value
        if kind is types.FunctionType:
            made = self._function(value)
        elif kind is tuple or kind is list:
            made = kind([self._of(x) for x in value])
        elif kind is dict:
            made = {self._of(name): self._of(x) for name, x in value.items()}
        elif kind is functools.partial:
            function, arguments, keywords = (
                self._of(x) for x in (value.func, value.args, value.keywords)
            )
            made = functools.partial(function, *arguments, **keywords)
        elif kind is types.MethodType:
            function = self._of(value.__func__)
            made = types.MethodType(function, self._of(value.__self__))
        elif hasattr(kind, "__tilewright_environment__"):
            before = self._next
            for x in value.__tilewright_environment__():
                self._of(x)
            if any(before <= place < self._next for place in self._stands):
                raise TypeError("a library object keeps its numbers")
        self._seen[id(value)] = made
        return made

    def _function(self, function):
        defaults = self._of(function.__defaults__) if function.__defaults__ else None
        keywords = self._of(function.__kwdefaults__) if function.__kwdefaults__ else None
        cells = [types.CellType(self._of(c.cell_contents)) for c in function.__closure__ or ()]
        code = function.__code__
        scope, changed = function.__globals__, {}
        for name in names_of(code):
            if name in scope:
                new = self._of(scope[name])
                if new is not scope[name]:
                    changed[name] = new
        made = types.FunctionType(
            code, {**scope, **changed} if changed else scope, function.__name__, defaults,
            tuple(cells) or None,
        )  # fmt: skip
        made.__kwdefaults__ = keywords
        return made
