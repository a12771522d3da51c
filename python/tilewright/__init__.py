"""Tilewright: block (tile) kernels and programmable attention on NumPy and DLPack arrays.

Arrays go in as NumPy arrays or as anything with ``__dlpack__`` and come back as NumPy arrays;
bfloat16 is that of ``ml_dtypes``. Bad input raises a ValueError or TypeError that names the
argument, what was expected and what was given. Every call releases the GIL while it computes.
"""

import contextlib
import operator
from collections.abc import Callable

from . import _composed, _core, _memo, masks, scores  # noqa: F401
from ._artifacts import Artifact, export, load_artifact
from ._attention import AuxOutput, AuxRequest, Gradients, flex_attention, flex_attention_vjp
from ._attributes import Attribute, Struct
from ._block_mask import BlockMask, create_block_mask, create_mask, create_scores
from ._captures import Capture, Row, Scalar
from ._control import associative_scan, cond, for_loop, reduce, scan, vjp, when, while_loop
from ._cuda_kernel import CpuFunction, CudaKernel, Launch, cuda_kernel
from ._elementwise import FUNCTIONS
from ._kernels import BlockSpec, Call, Element, Kernel, call, kernel, vmap
from ._language import (
    DType,
    Ref,
    Tile,
    all,  # noqa: A004
    any,  # noqa: A004
    arange,
    argmax,
    argmin,
    atomic_add,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_xchg,
    bitcast,
    broadcast_to,
    cast,
    cdiv,
    concatenate,
    cumlogsumexp,
    cummax,
    cummin,
    cumprod,
    cumsum,
    debug_check,
    debug_print,
    dot,
    ds,
    expand_dims,
    fma,
    full,
    gelu,
    iota,
    load,
    max,  # noqa: A004
    mean,
    min,  # noqa: A004
    num_programs,
    ones,
    prod,
    program_id,
    random_bits,
    reshape,
    squeeze,
    stack,
    store,
    sum,  # noqa: A004
    transpose,
    uniform,
    zeros,
)
from ._library import parse_mod
from ._mods import Mod, and_masks, capture, or_masks
from ._norm import layer_norm, layer_norm_vjp, rms_norm, rms_norm_vjp
from ._order import argsort, one_hot, sort, sort_by_key, take_along_axis, top_k
from ._profile import Profile, ProfileLine
from ._programs import Cost, Program, ShapeDtype, cpu_roofs
from ._tuning import Tuned, autotune
from ._warmup import warmup

globals().update(FUNCTIONS)
# For type checkers, which do not see names that are assigned at import time.
exp: Callable[..., Scalar]
exp2: Callable[..., Scalar]
expm1: Callable[..., Scalar]
log: Callable[..., Scalar]
log2: Callable[..., Scalar]
log1p: Callable[..., Scalar]
tanh: Callable[..., Scalar]
sigmoid: Callable[..., Scalar]
erf: Callable[..., Scalar]
erfc: Callable[..., Scalar]
cbrt: Callable[..., Scalar]
sin: Callable[..., Scalar]
cos: Callable[..., Scalar]
sqrt: Callable[..., Scalar]
rsqrt: Callable[..., Scalar]
reciprocal: Callable[..., Scalar]
square: Callable[..., Scalar]
abs: Callable[..., Scalar]
sign: Callable[..., Scalar]
floor: Callable[..., Scalar]
ceil: Callable[..., Scalar]
round: Callable[..., Scalar]
isnan: Callable[..., Scalar]
relu: Callable[..., Scalar]
silu: Callable[..., Scalar]
softplus: Callable[..., Scalar]
pow: Callable[..., Scalar]
nextafter: Callable[..., Scalar]
minimum: Callable[..., Scalar]
maximum: Callable[..., Scalar]
where: Callable[..., Scalar]
clamp: Callable[..., Scalar]

__all__ = [
    *FUNCTIONS,
    "Artifact",
    "Attribute",
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "BlockSpec",
    "Call",
    "Capture",
    "Cost",
    "CpuFunction",
    "CudaKernel",
    "DType",
    "Element",
    "Gradients",
    "Kernel",
    "Launch",
    "Mod",
    "Profile",
    "ProfileLine",
    "Program",
    "Ref",
    "Row",
    "Scalar",
    "ShapeDtype",
    "Struct",
    "Tile",
    "Tuned",
    "all",
    "and_masks",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "associative_scan",
    "atomic_add",
    "atomic_cas",
    "atomic_max",
    "atomic_min",
    "atomic_xchg",
    "autotune",
    "bitcast",
    "broadcast_to",
    "call",
    "capture",
    "cast",
    "cdiv",
    "checked",
    "concatenate",
    "cond",
    "cpu_roofs",
    "create_block_mask",
    "create_mask",
    "create_scores",
    "cuda_kernel",
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "debug_check",
    "debug_print",
    "devices",
    "doctor",
    "dot",
    "ds",
    "expand_dims",
    "export",
    "flex_attention",
    "flex_attention_vjp",
    "fma",
    "for_loop",
    "full",
    "gelu",
    "iota",
    "kernel",
    "layer_norm",
    "layer_norm_vjp",
    "load",
    "load_artifact",
    "masks",
    "max",
    "mean",
    "min",
    "num_programs",
    "one_hot",
    "ones",
    "or_masks",
    "parse_mod",
    "prod",
    "program_id",
    "random_bits",
    "reduce",
    "reshape",
    "rms_norm",
    "rms_norm_vjp",
    "scan",
    "scores",
    "set_num_threads",
    "sort",
    "sort_by_key",
    "squeeze",
    "stack",
    "store",
    "sum",
    "take_along_axis",
    "top_k",
    "transpose",
    "uniform",
    "version",
    "vjp",
    "vmap",
    "warmup",
    "when",
    "while_loop",
    "zeros",
]

version = _core.version
__version__ = version


def devices() -> list[str]:
    """Names of the devices that calls can run on: "cpu", "cuda:0", ..."""
    return _core.devices()


_threads_are_given = False


def set_num_threads(n: int) -> None:
    """Sets the number of threads that calls on the CPU use; 0 restores the default, all cores.

    Results do not depend on it. A negative number raises ValueError.
    """
    try:
        threads = operator.index(n)
    except TypeError:
        raise TypeError(
            f"[set_num_threads] expected an integer number of threads but got {n!r}"
        ) from None
    _core.set_num_threads(threads)
    global _threads_are_given
    _threads_are_given = threads > 0


def doctor() -> None:
    """Prints what this machine has, what will be used, what is missing and how to install it."""
    own = _memo.report()
    print(_core.doctor() + (f"\nCaches in memory, of Python\n{own}" if own else ""), end="")


@contextlib.contextmanager
def checked():
    """Runs calls within this context in the checked mode: bounds, undefined values, races. Slow."""
    before = _core.checked()
    _core.set_checked(True)
    try:
        yield
    finally:
        _core.set_checked(before)
