"""Runs calls once, so that their kernels are compiled before they are needed."""

import concurrent.futures
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from . import _core
from ._arrays import numpy_dtype
from ._programs import ShapeDtype


def _is_of(value, framework, name):
    kind = type(value)
    return kind.__module__.partition(".")[0] == framework and kind.__name__ == name


def _with_zeros(value):
    """The value, with arrays of zeros in place of shapes."""
    if isinstance(value, ShapeDtype):
        return np.zeros(value.shape, numpy_dtype("warmup", str(value.dtype)))
    if _is_of(value, "jax", "ShapeDtypeStruct"):
        import jax.numpy as jnp

        return jnp.zeros(value.shape, value.dtype)
    if type(value).__module__.partition(".")[0] == "torch" and getattr(value, "is_meta", False):
        import torch

        zeros = torch.zeros(value.shape, dtype=value.dtype, device=torch.device("cuda"))
        return zeros.requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: _with_zeros(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_zeros(item) for item in value)
    return value


def _run(call):
    function, *arguments = call
    result = function(*_with_zeros(arguments))
    # Queued work may fail later, and belongs to the call: wait for it.
    if (jax := sys.modules.get("jax")) is not None:
        jax.block_until_ready(result)
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _checked(call):
    parts = tuple(call) if isinstance(call, list | tuple) else (call,)
    if not parts or not callable(parts[0]):
        raise TypeError(
            "[warmup] expected calls that are functions, or tuples of a function and its "
            f"arguments, but got {call!r}"
        )
    return parts


def _bar(done, total):
    width = 30
    full = width * done // total
    bar = f"\r\033[Kcompiling [{'#' * full}{'.' * (width - full)}] {done} of {total}"
    sys.stderr.write(bar if done < total else "\r\033[K")
    sys.stderr.flush()


def warmup(
    calls: Iterable[Any],
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Runs each call once, in parallel, so that its kernels are compiled before they are needed.

    A call is a function without arguments, or a tuple of a function and its arguments. In place of
    an argument that describes a shape, also inside lists and dicts, it gets an array of zeros:

    * `tilewright.ShapeDtype`: a NumPy array;
    * `jax.ShapeDtypeStruct`: a JAX array on the default device;
    * a PyTorch tensor on the device ``meta``: one on the current GPU, with the same requires_grad.

    Results are discarded. GPU kernels stay in memory and in the disk cache.

    threads: the most calls at once; None: one per core. progress: called with the number of calls
    done and the total; without it a bar is drawn on standard error if that is a terminal.

    Raises the first error of a call, once running calls have ended. TypeError for anything else.
    """
    work = [_checked(call) for call in calls]
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise ValueError(f"[warmup] expected threads of at least 1 or None but got {threads!r}")
    if progress is None:
        progress = _bar if sys.stderr.isatty() else lambda done, total: None
    with (
        # First calls compile the kernels of later calls, and nothing that runs sooner.
        _core.NoCompactKernels(),
        concurrent.futures.ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool,
    ):
        futures = [pool.submit(_run, call) for call in work]
        try:
            for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
                future.result()
                progress(done, len(work))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
