"""Checks of flex_attention's arguments that are no tensors and no functions."""

import operator
from collections.abc import Mapping

import torch

from .. import _attention as _numpy_attention
from . import _errors

#: torch's names of kernels, for all of which the choice is ours.
BACKENDS = ("AUTO", "TRITON", "FLASH", "TRITON_DECODE", "TILEWRIGHT")


def check_device(op, query, device):
    """BadInput unless device is that of query: calls run where their tensors are."""
    if not isinstance(query, torch.Tensor):
        return  # refused later, by its type
    have = query.device
    try:
        wanted = torch.device(device)
    except (TypeError, RuntimeError):
        wanted = None
    if wanted is None or wanted.type != have.type or wanted.index not in (None, have.index):
        raise _errors.BadInput(
            f"[{op}] expected device=None or {str(have)!r}, the device of query, but got {device!r}"
        )


def check_types(op, layout, kernel_options):
    """BadInput or TypeError unless these can be examined further."""
    if not isinstance(layout, str) or layout not in ("bhsd", "bshd"):
        raise _errors.BadInput(f'[{op}] expected layout "bhsd" or "bshd" but got {layout!r}')
    if kernel_options is not None and not isinstance(kernel_options, Mapping):
        raise TypeError(
            f"[{op}] expected kernel_options to be a dict but got {type(kernel_options).__name__}"
        )


def wrong_backend(options):
    """What torch refuses of kernel_options["BACKEND"], or None; a name of its kernels is a hint."""
    backend = options.get("BACKEND")
    if backend is not None and options.get("FORCE_USE_FLEX_ATTENTION"):
        return (
            "BACKEND cannot be combined with legacy FORCE_USE_FLEX_ATTENTION. BACKEND "
            "supersedes it."
        )
    if backend is not None and backend not in BACKENDS:
        return f"Invalid BACKEND value {backend!r}. Must be one of {BACKENDS}"
    return None


def kernel_options_of(op, given):
    """The fields of a Spec, and the flags that torch does not have."""
    flags = {"checked": False, "deterministic": True}
    if given is None:
        return {}, flags
    hints = dict(given)
    for name in flags:
        if name in hints:
            flags[name] = flag(op, f"kernel_options[{name!r}]", hints.pop(name))
    wrong = wrong_backend(hints)
    if wrong is not None:
        raise _errors.BadInput(f"[{op}] {wrong}")
    try:
        forward, backward = _numpy_attention.kernel_options_of(op, hints)
    except ValueError as error:
        raise _errors.BadInput(str(error)) from None
    forward_blocks, backward_blocks = _numpy_attention.blocks_of(forward, backward)
    return {
        "forward_blocks": forward_blocks,
        "backward_blocks": backward_blocks,
        "autotune": forward.get("autotune", False) or backward.get("autotune", False),
        "engine": forward.get("engine", ""),
        "precision": forward.get("precision", ""),
    }, flags


def flag(op, name, value):
    try:
        if value in (True, False):
            return bool(value)
    except (RuntimeError, ValueError):  # an array of several elements
        pass
    raise TypeError(f"[{op}] expected {name} to be True or False but got {value!r}")


def number(op, name, value):
    try:
        value = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"[{op}] expected {name} to be a number but got {value!r}") from None
    if not -float("inf") < value < float("inf"):
        raise _errors.BadInput(f"[{op}] expected a finite {name} but got {value}")
    return value


def dropout_of(op, dropout):
    dropout = number(op, "dropout", dropout)
    if not 0 <= dropout < 1:
        raise _errors.BadInput(f"[{op}] expected dropout in [0, 1) but got {dropout}")
    return dropout


def window_of(op, window):
    if window is None:
        return -1, -1
    try:
        left, right = (operator.index(bound) for bound in window)
    except (TypeError, ValueError):
        raise TypeError(f"[{op}] expected window to be (left, right) but got {window!r}") from None
    if left < -1 or right < -1:
        raise _errors.BadInput(
            f"[{op}] expected window bounds of at least -1 but got {(left, right)}"
        )
    unbounded = 1 << 62  # more than positions can be apart
    return min(left, unbounded), min(right, unbounded)


def seed_of(seed):
    try:
        return operator.index(seed) % (1 << 64)
    except TypeError:
        raise TypeError(
            f"[flex_attention] expected seed to be an integer but got {seed!r}"
        ) from None
