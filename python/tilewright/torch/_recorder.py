"""Records a mod written in PyTorch as tile IR, in one run of the function.

The mod's scalars are wrapper tensors. Under a dispatch mode, every operation on them computes its
dtype and shape on meta tensors and applies the rule of `_rules.py` to the values they stand for. No
kernel runs and no memory is read. Any other tensor is a capture; operations on captures alone are
kept as a list, which each call runs on its own tensors.
"""

import contextlib
import math
import os
import sys
import threading
from typing import NamedTuple

import numpy as np
import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .. import _core
from .._errors import UnsupportedError
from .._numbers import Number, operand
from .._values import Scattered
from . import _array_rules, _rules  # noqa: F401  (imported to register rules)
from ._recording import Call, Slot, mapped, shape_of, tensors_of
from ._stand_ins import result_of, stand_in
from ._values import Part

_LARGEST = 1 << 20  # elements that an operation on captures may add to its inputs
_current = threading.local()

with _disable_current_modes():  # imports modules of torch, which the first mod would wait for
    pass


def current():
    """The recorder of the mod that runs in this thread; None if there is none."""
    return getattr(_current, "recorder", None)


class Traced(torch.Tensor):
    """What a mod computes with: a scalar, a small array, or a captured array, without memory."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, value, shape, dtype, device):
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        self.value, self.views_capture = value, False
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        recorder = current()
        if recorder is None:
            raise RuntimeError("a traced value was used after its mod had been recorded")
        return recorder.dispatch(func, args, kwargs or {})

    def _no_value(self, *_, **__):
        raise TypeError(_rules.NO_VALUE)

    __bool__ = __int__ = __float__ = __complex__ = item = tolist = numpy = _no_value

    def _no_index(self, *_, **__):
        raise TypeError(_rules.NO_INDEX)

    __index__ = __array__ = _no_index

    def __iter__(self):
        if self.dim() == 0:
            raise TypeError("a traced value has no elements: " + _rules.NO_VALUE)
        return iter(self.unbind(0))

    def __len__(self):
        if self.dim() == 0:
            raise TypeError("a traced value has no length")
        return self.shape[0]

    def __contains__(self, _):
        raise TypeError(_rules.NO_VALUE)

    def __repr__(self, **_):
        return f"Traced({self.dtype}, {tuple(self.shape)})"

    def __format__(self, _):
        return repr(self)

    def __deepcopy__(self, _):
        return self


class Whole(NamedTuple):
    """A whole captured array: the number of its slot."""

    slot: int


class _Dispatch(TorchDispatchMode):
    def __init__(self, recorder):
        super().__init__()
        self._recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # disabling it would import it, which takes seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.prim.device.default:  # how torch asks for a fake tensor's device
            return func(*args)
        return self._recorder.dispatch(func, args, kwargs or {})


def without_dynamo(function):
    """Keeps Dynamo from compiling what a compiled function calls outside of its graphs."""
    if "torch._dynamo" not in sys.modules:
        return function
    return torch._dynamo.disable(function)


def _passes_type_on(kind):
    """Whether a subclass of Tensor changes nothing about an operation but the type of its result."""
    own = getattr(kind.__torch_function__, "__func__", None)
    return own is torch.Tensor.__torch_function__.__func__


class _Functions(TorchFunctionMode):
    """Intercepts indexing by traced values, which torch would make numbers, and reads of shapes."""

    def __init__(self, recorder):
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if types and all(_passes_type_on(kind) for kind in types):
            # Traced values cannot take the type.
            with torch._C.DisableTorchFunctionSubclass():
                return self._run(func, args, kwargs)
        return self._run(func, args, kwargs)

    def _run(self, func, args, kwargs):
        if self._recorder.levels:
            args = mapped(args, torch.Tensor, self._recorder.unwrapped)
            kwargs = mapped(kwargs or {}, torch.Tensor, self._recorder.unwrapped)
        if func is torch.Tensor.__getitem__:
            return self._recorder.getitem(*args)
        if func is torch.Tensor.__setitem__:
            raise UnsupportedError("expected a mod that writes no elements; use torch.where")
        if func in _rules.SHAPES and not args[0].is_meta:
            self._recorder.fixed_shapes = True
        elif func in _rules.DETACHES and isinstance(args[0], Traced):
            # Not for a captured tensor, nor where autograd itself detaches to save results.
            self._recorder.own_rules = True
        elif func in _rules.PRODUCTS and [x.dim() for x in args] == [1, 2]:
            # torch would squeeze a matrix in place.
            func, args = torch.mv, (args[1].t(), args[0])
        elif func in _rules.VALUES:
            raise TypeError(_rules.NO_VALUE)
        return self._recorder.call(func, args, kwargs or {})


class Tables:
    """The arrays of a mod, by slot and by the core's names for them."""

    def __init__(self):
        self.leaves, self.constants, self.calls = {}, {}, []
        self.by_id, self.captured, self.slots = {}, {}, 0
        self.shapes = {}  # slot -> (shape, dtype)
        self.made = {}  # constants: id -> tensor
        self.slot_of = {}  # the core's name -> slot
        #: For the checked mode, whose errors name lines and variables: id of a tensor -> variable.
        self.variables = None

    def slot(self, shape, dtype):
        self.slots += 1
        self.shapes[self.slots - 1] = tuple(shape), dtype
        return self.slots - 1

    def name(self, slot):
        """The core's name for an array."""
        name = (self.variables or {}).get(id(self.leaves.get(slot)), "")
        if not name.isascii() or not name or name.startswith("array") or name in self.slot_of:
            name = f"array{slot}"
        self.slot_of[name] = slot
        return name


class Recorder:
    """One run of a mod's function."""

    def __init__(self, values, tables, device, replayed=False):
        self.values, self.tables, self.device = values, tables, device
        self.own_rules = self.fixed_shapes = False
        self._calls = list(tables.calls) if replayed else None
        self.wholes = {}  # slot -> the Traced that stands for an operation on captures
        self._watch = False
        self.levels = False  # whether torch.func transforms the caller

    # ---- What rules use.

    def unwrapped(self, tensor):
        """A stand-in for a captured torch.func tensor, which torch would dispatch differently."""
        if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return tensor
        slot = self.leaf(tensor)
        if slot not in self.wholes:
            self.wholes[slot] = self.wrap(Whole(slot), tensor)
        return self.wholes[slot]

    def value(self, x, dtype=None):
        """The value of an argument, converted to a dtype if given."""
        if isinstance(x, Traced):
            value, own = x.value, x.dtype
            value = self._part(value.slot) if isinstance(value, Whole) else value
        elif isinstance(x, torch.Tensor):
            own = x.dtype
            value = self._constant(x) if id(x) in self.tables.made else self._part(self.leaf(x))
        elif isinstance(x, bool | int | float | torch.SymInt | torch.SymFloat | torch.SymBool):
            own = dtype_of(x)
            value = self.values.dtypes.constant(x, own)
        elif isinstance(x, complex):
            raise UnsupportedError("expected a mod of real numbers but got a complex one")
        else:
            value, own = x, None  # already a value
        if dtype is None or dtype == own:
            return value
        if isinstance(value, Scattered):
            return Scattered(value.shape, dtype, value.entries)
        return self.values.elementwise(lambda e: self._converted(e, dtype), [value])

    def _converted(self, e, dtype):
        if isinstance(e, Number) and dtype == torch.bool and e.core.dtype != "bool":
            return self.values.number(e.core != 0, dtype)
        return self.values.convert(e, dtype)

    def array(self, x, dtype=None):
        """The same, as an object array."""
        return self.values.objects(self.value(x, dtype))

    def apply(self, name, inputs, dtype, common):
        """An elementwise operation computed in the dtype `common`."""
        return self.values.apply_all(name, [self.value(x, common) for x in inputs], dtype)

    @staticmethod
    def common(a, b):
        """The dtype in which torch compares two arguments."""
        return torch.result_type(stand_in(a), stand_in(b))

    def static_index(self, index, extent, dimension):
        if not isinstance(index, Number):
            self.fixed_shapes = True
        return self.values.static_index(index, extent, dimension)

    def inside(self, index, extent):
        """An index, counted from the end if negative, and clamped."""
        self.fixed_shapes = True
        if not isinstance(index, Number):
            return self.values.static_index(index, extent, 0)
        all_ = self.values.apply_all
        negative = all_("lt", [index, self.values.index(0)], torch.bool)
        moved = all_("add", [index, self.values.index(extent)], torch.int64)
        index = all_("where", [negative, moved, index], torch.int64)
        return self.values.element(self.values.clamped(index, extent - 1))

    def _part(self, slot):
        return Part(self.captured(slot), [None] * len(self.tables.shapes[slot][0]))

    def captured(self, slot):
        known = self.tables.captured.get(slot)
        if known is None:
            shape, dtype = self.tables.shapes[slot]
            name = self.tables.name(slot)
            known = self.tables.captured[slot] = self.values.captured(name, shape, dtype)
        return known

    def leaf(self, tensor):
        """The slot of a captured tensor."""
        tables = self.tables
        slot = tables.by_id.get(id(tensor))
        if slot is None:
            if tensor.is_sparse or tensor.layout != torch.strided or tensor.is_nested:
                raise UnsupportedError(f"expected dense captured tensors but got {tensor.layout}")
            slot = tables.by_id[id(tensor)] = tables.slot(shape_of(tensor), tensor.dtype)
            tables.leaves[slot] = tensor
        return slot

    def _constant(self, tensor):
        """A tensor that the mod made from numbers alone. A large one is read like a capture."""
        if tensor.numel() <= 1:
            with _disable_current_modes():
                number = tensor.detach().reshape(()).item() if tensor.numel() else 0
            return np.full(tuple(tensor.shape), self.values.dtypes.constant(number, tensor.dtype))[
                ()
            ]
        slot = self.tables.by_id.get(id(tensor))
        if slot is None:
            slot = self.tables.by_id[id(tensor)] = self.tables.slot(tensor.shape, tensor.dtype)
            self.tables.constants[slot] = tensor
        return self._part(slot)

    # ---- Operations.

    def wrap(self, value, out):
        return Traced(value, out.shape, out.dtype, self.device)

    def getitem(self, tensor, index):
        index = index if isinstance(index, tuple) else (index,)
        index = tuple(torch.tensor(i) if isinstance(i, list) else i for i in index)
        if not any(isinstance(i, Traced) for i in index):
            index = index if len(index) != 1 else index[0]
            return self.call(torch.Tensor.__getitem__, (tensor, index), {})
        given = sum(i is not None and i is not Ellipsis for i in index)
        if given > tensor.dim():
            raise IndexError(
                f"expected at most {tensor.dim()} indices of a captured tensor but got {given}"
            )
        for i in index:
            if isinstance(i, torch.Tensor) and (i.dtype.is_floating_point or i.dtype.is_complex):
                raise IndexError(f"expected integers as indices but got {i.dtype}: use .long()")
        if Ellipsis in [i if i is Ellipsis else None for i in index]:
            at = next(k for k, i in enumerate(index) if i is Ellipsis)
            whole = (slice(None),) * (tensor.dim() - given)
            index = (*index[:at], *whole, *index[at + 1 :])
        traced = [isinstance(i, torch.Tensor) for i in index]
        plain = tuple(slice(None) if t else i for i, t in zip(index, traced, strict=True))
        if any(p != slice(None) for p in plain if not isinstance(p, torch.Tensor)):
            tensor = self.call(torch.Tensor.__getitem__, (tensor, plain), {})
        indices = []
        for i, t in zip(index, traced, strict=True):
            if t:
                indices.append(i)
            elif i is None or isinstance(i, slice):
                indices.append(None)
        while indices and indices[-1] is None:
            indices.pop()
        return torch.ops.aten.index.Tensor(tensor, indices)

    def call(self, func, args, kwargs):
        """Runs a torch function. What it makes from captures alone is a capture to derivatives."""
        if self._calls is None:
            return func(*args, **kwargs)
        tensors = tensors_of(kwargs, tensors_of(args, []))
        scalars = any(isinstance(t, Traced) and not isinstance(t.value, Whole) for t in tensors)
        if scalars or not any(t.requires_grad for t in tensors):
            return func(*args, **kwargs)
        with torch.no_grad():
            result = func(*args, **kwargs)
        for made in tensors_of(result, []):
            if isinstance(made, Traced) and made.dtype.is_floating_point:
                made.requires_grad_()
        return result

    def dispatch(self, func, args, kwargs):
        tensors = tensors_of(kwargs, tensors_of(args, []))
        made = self.tables.made
        traced = [t for t in tensors if isinstance(t, Traced)]
        captures = [t for t in tensors if not isinstance(t, Traced) and id(t) not in made]
        name = func._schema.name
        if name == "aten::lift_fresh" and captures and not captures[0].is_meta:
            fresh = captures.pop()  # what torch.tensor makes of numbers
            made[id(fresh)] = fresh
        if self.tables.variables is not None:
            _core.exchange_source_line(*_users_line())
        try:
            hint = _rules.refusal(func, name, any(not isinstance(t.value, Whole) for t in traced))
            if hint is not None:
                raise UnsupportedError(f"expected a mod without {name.partition('::')[2]}{hint}")
            if not traced and not captures:
                return self._made(func, args, kwargs)
            return self._operation(func, name, args, kwargs, traced, captures)
        except UnsupportedError as error:
            if error.placed:
                raise
            raise UnsupportedError(f"{error}{_place()}", placed=True) from None

    def _made(self, func, args, kwargs):
        """An operation on numbers alone: computed on the CPU."""
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu"), "pin_memory": False}
            kwargs = {k: v for k, v in kwargs.items() if k != "pin_memory"}
        with _disable_current_modes():
            result = func(*args, **kwargs)
        for tensor in tensors_of(result, []):
            self.tables.made[id(tensor)] = tensor
        return result

    def _operation(self, func, name, args, kwargs, traced, captures):
        mutated = func._schema.is_mutable
        if mutated and (not _writes_first(func) or self._is_of_capture(args[0])):
            raise UnsupportedError(
                "expected a mod that leaves captured tensors as they are but it writes to one"
            )
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            out = result_of(func, name, args, kwargs, mutated)
        if mutated and shape_of(out) != shape_of(args[0]):
            raise UnsupportedError(f"expected a mod whose tensors keep their shapes but got {name}")
        whole = all(isinstance(t.value, Whole) for t in traced)
        func = _rules.RESOLVED.get(func, func)
        if not mutated and whole and self._is_next(func):
            return self._on_captures(func, args, kwargs, out, [*traced, *captures])
        if self._watch and not torch.is_grad_enabled() and _is_float(out):
            self.own_rules = True
        rule = _rules.RULES.get(name) or (
            _rules.RULES.get(name.removesuffix("_")) if mutated else None
        )
        if rule is None:
            return self._decomposed(func, name, args, kwargs)
        value = rule(self, out, *args, **kwargs)
        if mutated:
            args[0].value = value
            return args[0]
        if isinstance(out, tuple | list):
            return type(out)([self.wrap(v, o) for v, o in zip(value, out, strict=True)])
        return self.wrap(value, out)

    @staticmethod
    def _is_of_capture(tensor):
        """Whether writing to it would write to a captured tensor."""
        return tensor.views_capture if isinstance(tensor, Traced) else True

    def _decomposed(self, func, name, args, kwargs):
        from torch._decomp import decomposition_table

        decomposition = decomposition_table.get(func)
        if decomposition is None and func._can_decompose():
            # In C++: under a function mode the operator would come back unchanged.
            with _Dispatch(self), torch._C.DisableTorchFunction():
                return func.decompose(*args, **kwargs)
        if decomposition is None:
            raise UnsupportedError(f"expected a mod of scalar operations but got {name}")
        with _Dispatch(self), _Functions(self):
            return decomposition(*args, **kwargs)

    def _is_next(self, func):
        """Whether an operation on captures alone is kept for each call to run. What autograd does
        to captures in a derivative becomes part of the derivative instead."""
        return self._calls is None or any(call.function is func for call in self._calls[:1])

    def _on_captures(self, func, args, kwargs, out, inputs):
        """Keeps an operation for each call to run; its results are arrays like captures."""
        given = sum(math.prod(shape_of(t)) for t in inputs)
        if any(o.numel() > given + _LARGEST for o in tensors_of(out, [])):
            raise UnsupportedError(
                f"expected captured tensors to be indexed before {func._schema.name} makes a larger "
                "one of them"
            )
        self.fixed_shapes = True

        def slot_of(t):
            if isinstance(t, Traced):
                return Slot(t.value.slot)
            if id(t) in self.tables.made:
                with _disable_current_modes():
                    self._constant_slot(t)
                return Slot(self.tables.by_id[id(t)])
            return Slot(self.leaf(t))

        outs = out if isinstance(out, tuple | list) else (out,)
        if self._calls is not None:
            results = self._calls.pop(0).results
        else:
            results = tuple(self.tables.slot(o.shape, o.dtype) for o in outs)
            self.tables.calls.append(
                Call(func, mapped(args, torch.Tensor, slot_of),
                     mapped(kwargs, torch.Tensor, slot_of), results)
            )  # fmt: skip
        wrapped = [self.wrap(Whole(s), o) for s, o in zip(results, outs, strict=True)]
        if any(r.alias_info is not None for r in func._schema.returns):
            for view in wrapped:
                view.views_capture = view.dtype == args[0].dtype and self._is_of_capture(args[0])
        for slot, whole in zip(results, wrapped, strict=True):
            self.wholes[slot] = whole
        return type(out)(wrapped) if isinstance(out, tuple | list) else wrapped[0]

    def _constant_slot(self, tensor):
        if id(tensor) not in self.tables.by_id:
            slot = self.tables.by_id[id(tensor)] = self.tables.slot(tensor.shape, tensor.dtype)
            self.tables.constants[slot] = tensor

    def library(self, mod, arrays, scalars):
        """Applies a mod of the core, with captured tensors, to the scalars of the running mod."""
        captures = [self.captured(self.leaf(x)).core for x in arrays]
        inputs = [operand(self.values.element(self.value(x))) for x in scalars]
        dtype = torch.bool if mod.is_mask else scalars[0].dtype
        value = self.values.number(mod.apply(captures, inputs), dtype)
        return self.wrap(value, torch.empty((), dtype=dtype, device="meta"))

    @contextlib.contextmanager
    def running(self):
        """Within this context torch's operations on wrapper tensors are recorded."""
        before = current()
        _current.recorder = self
        self._watch = True
        # torch.tensor(numbers, device=...) then moves to a GPU what it has made, which is recorded.
        lifts_cpu = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            with _without_hooks(), torch.enable_grad(), _Dispatch(self), _Functions(self):
                yield
        finally:
            _current.recorder = before
            torch._C._set_only_lift_cpu_tensors(lifts_cpu)


def _without_hooks():
    """Hides what autograd saves from the caller's hooks: a checkpoint counts it, and compares with
    the second forward pass, which records nothing."""
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_same, _same)


def _same(x):
    return x


def _is_float(out):
    return isinstance(out, torch.Tensor) and out.dtype.is_floating_point


def _writes_first(func):
    """Whether an operator writes to its first argument rather than to `out`."""
    alias = func._schema.arguments[0].alias_info
    return alias is not None and alias.is_write


def dtype_of(number):
    if isinstance(number, bool | torch.SymBool):
        return torch.bool
    return torch.int64 if isinstance(number, int | torch.SymInt) else torch.float64


_OURS = os.path.dirname(os.path.abspath(__file__))
_TORCHS = os.path.dirname(os.path.abspath(torch.__file__))


def _users_line():
    """(file, line) of the user's code; line 0 if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        file = os.path.abspath(frame.f_code.co_filename)
        if not file.startswith((_OURS, _TORCHS)):
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _place():
    """The user's line, as text."""
    file, line = _users_line()
    return f" at {file}:{line}" if line else ""


@contextlib.contextmanager
def outside_of_modes():
    """Hides a mod's operations from whatever traces or transforms the caller. Yields whether
    torch.func transforms it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(_set_fwd_grad_enabled(False))
        stack.enter_context(torch._C._DisableAutocast())
        while torch._C._len_torch_function_stack():
            stack.enter_context(torch.overrides._pop_mode_temporarily())
        levels = torch._C._functorch.peek_interpreter_stack() is not None
        if levels:
            stack.enter_context(temporarily_clear_interpreter_stack())
        yield levels
