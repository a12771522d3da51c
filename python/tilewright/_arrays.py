"""NumPy and DLPack arrays as tensors of the library, and back."""

import numpy as np

from . import _core

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

_NAMES = {
    np.dtype(np.bool_): "bool",
    np.dtype(np.int8): "i8",
    np.dtype(np.uint8): "u8",
    np.dtype(np.int16): "i16",
    np.dtype(np.uint16): "u16",
    np.dtype(np.int32): "i32",
    np.dtype(np.uint32): "u32",
    np.dtype(np.int64): "i64",
    np.dtype(np.uint64): "u64",
    np.dtype(np.float16): "f16",
    np.dtype(np.float32): "f32",
    np.dtype(np.float64): "f64",
}
if ml_dtypes is not None:
    _NAMES[np.dtype(ml_dtypes.bfloat16)] = "bf16"
    _NAMES[np.dtype(ml_dtypes.float8_e4m3fn)] = "f8e4m3"
    _NAMES[np.dtype(ml_dtypes.float8_e5m2)] = "f8e5m2"
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def dtype_name(op, argument, dtype):
    """The library's name of a NumPy dtype, or of what NumPy can make one of; TypeError if none."""
    try:
        return _NAMES[np.dtype(dtype)]
    except (KeyError, TypeError):
        known = ", ".join(_DTYPES)
        raise TypeError(f"[{op}] expected {argument} of {known} but got {dtype!r}") from None


def to_tensor(op, argument, value):
    """A tensor on the memory of `value`, without a copy where strides allow; None: left out."""
    if value is None:
        return _core.Tensor()
    if isinstance(value, _core.Tensor):
        return value
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        name = dtype_name(op, argument, value.dtype)
        size = value.itemsize
        if not value.flags.aligned or any(s % size for s in value.strides):
            value = value.copy()
        strides = [stride // size for stride in value.strides]
        address = value.__array_interface__["data"][0]
        return _core.Tensor.from_memory(address, name, list(value.shape), strides, value)
    if hasattr(value, "__dlpack__"):
        return _core.Tensor.from_dlpack(value.__dlpack__())
    raise TypeError(
        f"[{op}] expected {argument} to be a NumPy array or to have __dlpack__ "
        f"but got {type(value).__name__}"
    )


def to_array(tensor):
    """The tensor as a NumPy array on the same memory; None for an undefined one."""
    if not tensor.defined:
        return None
    array = np.asarray(tensor)
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise TypeError(
            f"a result of {tensor.dtype} needs the package ml_dtypes (tilewright[bf16])"
        )
    return array if array.dtype == dtype else array.view(dtype)
