"""Mods written in torch: functions of scalars, recorded as text."""

import sys

import torch

from .. import _core
from .._functions import check, variables_of
from .._numbers import Number, operand
from . import _derivative
from ._core_mods import from_core
from ._errors import BadInput
from ._recorder import Recorder, Tables, Traced, dtype_of, outside_of_modes, without_dynamo
from ._recording import Recording
from ._values import Part, TorchValues

_POSITIONS = (0, (1 << 31) - 1)


def record(
    op, argument, function, is_mask, sizes, score_dtype=torch.float32, device="cpu", checked=False
):
    """Records a mod anew; TypeError, ValueError or NotImplementedError if it cannot be one. For
    the checked mode, its text names the variables that hold captures, and lines."""
    recording = recorded(op, argument, function, is_mask, score_dtype, device, checked)
    if recording.fixed_shapes:
        for leaf in recording.leaves.values():
            for size in leaf.shape:
                int(size)  # makes Dynamo guard on a symbolic size, since the text depends on it
    return recording.bind(recording.leaves, device)


def recorded(
    op, argument, function, is_mask, score_dtype=torch.float32, device="cpu", checked=False
):
    """The Recording of a mod."""
    if isinstance(function, _core.Mod):
        function = from_core(function)
    check(op, argument, function, is_mask)
    wide = score_dtype == torch.float64
    score = torch.float64 if wide else torch.float32
    values, tables = TorchValues(score), Tables()
    device = torch.device(device)
    kept = {}
    variables = variables_of(function) if checked else None

    def scalars_of(recorder, cores, leaf=False):
        numbers = [values.number(core, torch.int32, _POSITIONS) for core in cores[-4:]]
        stand = torch.empty((), dtype=torch.int32, device="meta")
        scalars = [recorder.wrap(n, stand) for n in numbers]
        if not is_mask:
            scalars.insert(0, Traced(Number(cores[0]), (), score, device))
        return scalars

    def body(*cores):
        tables.__init__()
        tables.variables = variables
        with outside_of_modes() as levels:
            recorder = kept["recorder"] = Recorder(values, tables, device)
            recorder.levels = levels
            scalars = scalars_of(recorder, cores)
            with recorder.running():
                out = function(*scalars)
            if recorder.own_rules and not is_mask:
                for slot in list(tables.captured):  # its rules may read what the mod only passes on
                    index = [values.index(0)] * len(tables.shapes[slot][0])
                    Part(recorder.captured(slot), index).value()
            return _result(op, argument, recorder, out, is_mask)

    core = (_core.Mod.mask if is_mask else _core.Mod.score)(without_dynamo(body))
    derivative = "", ""
    width = "f64" if wide and not is_mask else "f32"
    try:
        text = core.ir(width, checked)
        reads = [tables.slot_of[c.name] for c in core.captures()]
        if not is_mask and kept["recorder"].own_rules:
            derivative = _derivative.translate(
                core, function, values, tables, device, scalars_of, width, reads
            )
    except NotImplementedError as error:
        raise NotImplementedError(f"[{op}] {argument}: {error}") from None
    except (TypeError, IndexError) as error:
        if str(error).startswith(f"[{op}]"):
            raise
        raise type(error)(f"[{op}] {argument}: {error}") from error
    finally:
        if checked:
            _core.exchange_source_line("", 0)
    return Recording(
        sys.intern(text), tables.leaves, tables.constants, tables.calls, reads,
        sys.intern(derivative[0]), sys.intern(derivative[1]), kept["recorder"].fixed_shapes or values.wrote_out,
    )  # fmt: skip


def _result(op, argument, recorder, out, is_mask):
    """The function's result as the core takes it."""
    wanted = "a bool scalar" if is_mask else "a number"
    if isinstance(out, bool | int | float):
        dtype, shape = dtype_of(out), ()
    elif isinstance(out, torch.Tensor):
        dtype, shape = out.dtype, tuple(out.shape)
    else:
        raise BadInput(
            f"[{op}] expected {argument} to return {wanted} but it returns {type(out).__name__}"
        )
    fits = dtype == torch.bool if is_mask else not (dtype == torch.bool or dtype.is_complex)
    if shape != () or not fits:
        raise BadInput(
            f"[{op}] expected {argument} to return {wanted} but it returns {dtype} of shape "
            f"{shape}"
        )
    value = recorder.values.element(recorder.value(out))
    return operand(value)
