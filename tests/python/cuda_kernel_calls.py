"""Calls of CUDA kernels on a GPU: test_cuda_kernel.py runs this program on the stand-in for a GPU,
and calls its functions directly if there is a GPU."""

import ctypes
import pathlib
import sys
import tempfile

import numpy as np

import tilewright as tw
from tilewright import _arrays, _core

sys.path.insert(0, str(pathlib.Path(__file__, "../../../examples/custom_op").resolve()))

SCALE = """
#include <tilewright.cuh>

template <typename T>
__global__ void scale(const T* x, T* y, int count, float factor) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = tw::to<T>(tw::widen(x[i]) * factor);
}
"""


def count(x):
    return int(np.prod(x.shape))


def scale(source=SCALE, **changes):
    options = {
        "inputs": ("x",),
        "outputs": ("y",),
        "out_shape": lambda x: tw.ShapeDtype(x.shape, x.dtype),
        "grid": lambda x: tw.cdiv(count(x), 64),
        "block": 64,
        "template": ("x",),
        "attributes": {"count": tw.Attribute("i32", count), "factor": tw.Attribute("f32", 2.0)},
    }
    return tw.cuda_kernel(source, "scale", **{**options, **changes})


def on_gpu(array):
    return _arrays.to_device("test", _arrays.to_tensor("test", "x", array), "cuda")


def back(array):
    return _arrays.to_array(array.to(False, 0))


def check_dtypes_and_views():
    f = scale()
    for dtype in (np.float32, np.float64, np.float16, _arrays._DTYPES["bf16"]):
        x = np.arange(100).astype(dtype)
        y = f(on_gpu(x), factor=0.5)
        assert y.device == "cuda:0" and y.shape == (100,)
        np.testing.assert_array_equal(back(y), (x / 2).astype(dtype))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    on = on_gpu(x)
    out = on_gpu(np.zeros((3, 4), np.float32))
    assert f(on, out=out) is out
    np.testing.assert_array_equal(back(out), 2 * x)


def check_norms():
    from rms_norm import make_rms_norm, reference, reference_gradients, rms_norm_backward

    norm = make_rms_norm(__file__)  # no library is needed on a GPU
    random = np.random.default_rng(0)
    for dtype, weight_dtype, bound in (
        (np.float64, np.float64, 1e-12),
        (np.float32, np.float32, 1e-5),
        (np.float32, _arrays._DTYPES["bf16"], 1e-2),
        (np.float16, np.float16, 3e-3),
        (_arrays._DTYPES["bf16"], np.float32, 1e-2),
    ):
        x = random.standard_normal((5, 300)).astype(dtype)
        dy = random.standard_normal((5, 300)).astype(weight_dtype)
        weight = (1 + 0.1 * random.standard_normal(300)).astype(weight_dtype)
        y, rstd = norm(on_gpu(x), on_gpu(weight), eps=1e-3)
        gradients = rms_norm_backward(on_gpu(dy), on_gpu(x), on_gpu(weight), rstd)
        wide = [np.asarray(a, np.float64) for a in (dy, x, weight)]
        want = reference(*wide[1:], 1e-3)[0], *reference_gradients(*wide, 1e-3)
        for have, exact in zip((y, *gradients), want, strict=True):
            error = np.abs(np.asarray(back(have), np.float64) - exact).max()
            assert error < bound * np.abs(exact).max(), (dtype, weight_dtype, error)
        assert back(y).dtype == weight_dtype and back(gradients[0]).dtype == dtype


def check_refusals():
    f = scale()
    x = np.arange(8, dtype=np.float32)
    for given, text in (
        (lambda: f(x), "expected arrays on a GPU, since the kernel has no function for the CPU"),
        (lambda: f(on_gpu(x), out=np.zeros(8, np.float32)), "expected `y` on cuda:0, where `x` is"),
        (lambda: f(on_gpu(x), out=on_gpu(x.astype(np.float64))), "to be f32[8] but got f64[8]"),
        (lambda: scale("#include <nothing.h>\n" + SCALE)(on_gpu(x)), "scale.cu"),
    ):
        try:
            given()
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"no error: {text}")


def check_streams_of_another_device():
    if "cuda:1" not in _core.devices():
        return
    x = np.arange(8, dtype=np.float32)

    def add_one(x, y):
        y[...] = x[...] + 1

    kernel = tw.call(add_one, out_shape=tw.ShapeDtype((8,), np.float32))
    driver = ctypes.CDLL("libcuda.so.1")
    versions = ctypes.c_int(), ctypes.c_int()
    for version, attribute in zip(versions, (75, 76), strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(version), attribute, 0)
    arch = f"sm_{versions[0].value}{versions[1].value}" + "a" * (versions[0].value >= 9)
    with tempfile.TemporaryDirectory() as folder:
        tw.export(kernel, folder, x, archs=[arch])
        artifact = tw.load_artifact(folder, "cuda")
    runs = {scale(): 2 * x, kernel: x + 1, artifact: x + 1}
    given = on_gpu(x)
    for run, want in runs.items():
        np.testing.assert_array_equal(back(run(given)), want)
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1)
    driver.cuCtxPushCurrent_v2(context)
    driver.cuStreamCreate(ctypes.byref(stream), 1)
    driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    _core.set_cuda_stream(stream.value)
    for run in runs:
        try:
            run(given)
        except ValueError as error:
            assert "the current one belongs to cuda:1" in str(error), error
        else:
            raise AssertionError(f"{run} takes a stream of another device")
    _core.set_cuda_stream(0)


def check_workspace_from_the_cache():
    """The same result twice: a used workspace is cleared."""
    from rms_norm import rms_norm_backward

    dy = x = np.ones((100, 40), np.float32)
    weight, rstd = np.ones(40, np.float32), np.ones(100, np.float32)
    given = [on_gpu(a) for a in (dy, x, weight, rstd)]
    for _ in range(3):
        np.testing.assert_array_equal(back(rms_norm_backward(*given)[1]), np.full(40, 100.0))


def check_cupy():
    try:
        import cupy
    except ImportError:
        return  # no CuPy, or it does not work here
    try:
        x = cupy.arange(100, dtype=cupy.float32).reshape(4, 25)
    except Exception:  # CuPy does not accept the stand-in
        return
    with cupy.cuda.Stream(non_blocking=True):
        for given in (x, x[:, ::2], x.T):
            y = scale()(given + 1, factor=3.0)
            assert isinstance(y, cupy.ndarray)
            cupy.testing.assert_array_equal(y, 3 * (given + 1))


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}

if __name__ == "__main__":
    assert len(_core.devices()) > 1
    for name, check in CHECKS.items():
        check()
        print(name, flush=True)
