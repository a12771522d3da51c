"""NumPy and DLPack arrays as tensors of the library, and back."""

import contextlib
import math
import sys
from typing import Any, TypeAlias

import numpy as np

from . import _core
from ._dtypes import EXTENDED, NAMES

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

#: What calls take and return: arrays of NumPy, JAX, PyTorch, anything with DLPack.
Array: TypeAlias = Any

_NAMES = {np.dtype(name): ours for name, ours in NAMES.items() if name not in EXTENDED}
if ml_dtypes is not None:
    _NAMES |= {np.dtype(getattr(ml_dtypes, name)): NAMES[name] for name in EXTENDED}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
#: Dtypes that PyTorch names differently, or that NumPy lacks without ml_dtypes.
_OTHERS = {name: NAMES[name] for name in EXTENDED}


def numpy_dtype(op, name):
    """NumPy's dtype for the library's name; TypeError if it needs a package that is missing."""
    if name not in _DTYPES:
        raise TypeError(f"[{op}] expected the package ml_dtypes, which has {name}, but found none")
    return _DTYPES[name]


def dtype_name(op, argument, dtype):
    """The library's name for a dtype of its own, NumPy's or PyTorch's; TypeError for others."""
    if isinstance(dtype, str) and (dtype in _DTYPES or dtype in _OTHERS.values()):
        return str(dtype)
    name = str(dtype).removeprefix("torch.")
    if name in _OTHERS:
        return _OTHERS[name]
    try:
        return _NAMES[np.dtype(name if str(dtype).startswith("torch.") else dtype)]
    except (KeyError, TypeError):
        known = ", ".join(dict.fromkeys([*_DTYPES, *_OTHERS.values()]))
        raise TypeError(f"[{op}] expected {argument} of {known} but got {dtype!r}") from None


def number(op, argument, value):
    """A finite float; TypeError or ValueError unless the argument is one."""
    try:
        value = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"[{op}] expected {argument} to be a number but got {value!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"[{op}] expected a finite {argument} but got {value}")
    return value


def flag(op, argument, value):
    """A bool; TypeError unless the argument is one, or 0 or 1."""
    if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"[{op}] expected {argument} to be True or False but got {value!r}")


def to_tensor(op, argument, value):
    """A tensor on the memory of `value`, without a copy where strides allow; None means omitted."""
    if value is None:
        return _core.Tensor()
    if isinstance(value, _core.Tensor):
        return value
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        name = _NAMES.get(value.dtype) or dtype_name(op, argument, value.dtype)
        size = value.itemsize
        if not value.flags.aligned or any(s % size for s in value.strides):
            value = value.copy()
        strides = [stride // size for stride in value.strides]
        address = value.__array_interface__["data"][0]
        return _core.Tensor.from_memory(address, name, list(value.shape), strides, value)
    if hasattr(value, "__dlpack__"):
        _expect_memory(op, argument, value)
        try:
            with _torchs_device_of(value):
                options = {"stream": _stream_for(value)} if is_on_gpu(value) else {}
                return _core.Tensor.from_dlpack(value.__dlpack__(**options))
        except (BufferError, ValueError) as error:  # the producer says why it exports none
            raise ValueError(f"[{op}] cannot read {argument}: {error}") from error
    raise TypeError(
        f"[{op}] expected {argument} to be a NumPy array or to have __dlpack__ "
        f"but got {type(value).__name__}"
    )


def _expect_memory(op, argument, value):
    """ValueError for a PyTorch tensor whose elements are not those in its memory."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return
    if type(value) is not torch.Tensor and isinstance(value, torch._subclasses.FakeTensor):
        raise ValueError(f"[{op}] cannot read {argument}: a FakeTensor has no memory")
    if value.is_neg():
        raise ValueError(f"[{op}] cannot read {argument}: use resolve_neg() on a negated view")


def _stream_for(value):
    """The stream that the producer makes wait for its work; 1 is the legacy default stream."""
    torch = sys.modules.get("torch")
    is_torchs = torch is not None and isinstance(value, torch.Tensor)
    if is_torchs and torch.cuda.is_current_stream_capturing():
        return -1  # none: the graph orders what it holds
    return _core.cuda_stream() or 1


def _torchs_device_of(value):
    """Within this context the device of a PyTorch tensor on a GPU is PyTorch's current one: it
    exports others by DLPack not at all, or by the wrong stream."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or not value.is_cuda:
        return contextlib.nullcontext()
    return torch.cuda.device(value.device)


def is_on_gpu(value):
    """True for a DLPack array in the memory of a CUDA GPU."""
    cuda = 2
    return hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] == cuda


def to_device(op, tensor, device):
    """The tensor on `device`: None (where it is), "cpu", "cuda" or "cuda:N"."""
    if device is None or not tensor.defined:
        return tensor
    kind, _, index = str(device).partition(":")
    if kind not in ("cpu", "cuda") or not (index or "0").isdigit():
        raise ValueError(
            f'[{op}] expected device None, "cpu", "cuda" or "cuda:N" but got {device!r}'
        )
    return tensor.to(kind == "cuda", int(index or 0))


@contextlib.contextmanager
def stream_of(value):
    """Within this context calls run on PyTorch's current stream if `value` is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or not value.is_cuda:
        yield
        return
    before = _core.cuda_stream()
    _core.set_cuda_stream(torch.cuda.current_stream(value.device).cuda_stream)
    try:
        yield
    finally:
        _core.set_cuda_stream(before)


def to_array(tensor, like=None):
    """The tensor as an array on the same memory; None for an undefined one.

    On the CPU a NumPy array; on a GPU an array of the framework of `like` (PyTorch, JAX, CuPy),
    else the tensor itself, which has __dlpack__. If `like` is not a GPU array, the tensor is copied
    to the CPU.
    """
    if not tensor.defined:
        return None
    if tensor.device != "cpu":
        if like is not None and not is_on_gpu(like):
            return to_array(tensor.to(False, 0))
        return _in_framework(tensor, like)
    array = np.asarray(tensor)
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise TypeError(f"a result of {tensor.dtype} needs ml_dtypes: pip install ml_dtypes")
    return array if array.dtype == dtype else array.view(dtype)


def _in_framework(tensor, like):
    root = type(like).__module__.partition(".")[0]
    if root == "torch":
        return sys.modules["torch"].from_dlpack(tensor)
    if root in ("jax", "jaxlib"):
        return sys.modules["jax"].dlpack.from_dlpack(tensor)
    if root == "cupy":
        return sys.modules["cupy"].from_dlpack(tensor)
    return tensor


def shown_fields(self):
    """The repr of a named tuple of arrays: dtypes and shapes in place of elements."""
    fields = ", ".join(
        f"{name}={_shown(value)}" for name, value in zip(self._fields, self, strict=True)
    )
    return f"{type(self).__name__}({fields})"


def _shown(value):
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return repr(value)
