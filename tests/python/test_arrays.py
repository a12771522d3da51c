"""Arrays in and out: dtypes, strides, DLPack, ownership, errors."""

import gc

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import _core
from tilewright._arrays import to_array, to_tensor

DTYPES = [
    *(np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
    *(np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip_keeps_dtype_shape_and_values(dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    back = to_array(to_tensor("test", "x", array))
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_views_share_memory():
    array = np.zeros((4, 6), np.float32)
    for view in (array[::2, ::-1], array.T, array[1:, 2], np.broadcast_to(array[0], (3, 6))):
        back = to_array(to_tensor("test", "x", view))
        assert np.shares_memory(back, array)
        assert back.strides == view.strides or view.size < 2


def test_memory_outlives_the_array():
    back = to_array(to_tensor("test", "x", np.full(1000, 7.0)))
    gc.collect()
    assert np.all(back == 7.0)


def test_unaligned_fields_are_copied():
    record = np.zeros(5, np.dtype([("tag", np.uint8), ("x", np.float32)]))
    record["x"] = np.arange(5)
    assert np.array_equal(to_array(to_tensor("test", "x", record["x"])), np.arange(5))


def test_dlpack_in_and_out():
    class Wrapped:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor = to_tensor("test", "x", Wrapped(array))
    assert np.array_equal(np.from_dlpack(tensor), array)
    assert tensor.__dlpack_device__() == (1, 0)


def test_a_capsule_is_taken_once():
    capsule = np.zeros(3).__dlpack__()
    _core.Tensor.from_dlpack(capsule)
    with pytest.raises(ValueError, match="incorrect name"):  # consuming renamed the capsule
        _core.Tensor.from_dlpack(capsule)


@pytest.mark.parametrize("value", [[1.0, 2.0], "text", 3, object()])
def test_other_things_are_refused_by_name(value):
    with pytest.raises(TypeError, match=r"\[rms_norm\] expected weight .* but got"):
        to_tensor("rms_norm", "weight", value)


@pytest.mark.parametrize("dtype", [np.complex64, "U3", ">f4"])
def test_dtypes_without_a_counterpart_are_refused(dtype):
    with pytest.raises(TypeError, match="expected x of"):
        to_tensor("rms_norm", "x", np.zeros(3, dtype))


def test_too_little_memory_is_no_fault_of_the_input():
    # One element, repeated: the input takes no memory, the result more than there is.
    huge = np.broadcast_to(np.float32(1), (2**40, 2**20))
    with pytest.raises(MemoryError, match="bytes of memory"):
        tw.rms_norm(huge)
