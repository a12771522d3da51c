"""tw.cuda_kernel: CPU functions, attributes, NVRTC's errors, refusals, and calls on a GPU or the
stand-in for one."""

import enum
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import tilewright as tw
from tilewright import _core

# For this import only: the folder also has modules named like frameworks.
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cuda_kernel_calls import CHECKS, SCALE, count, scale

sys.path.remove(str(pathlib.Path(__file__).parent))

STAND_IN = pathlib.Path(__file__).parents[2] / "build" / "tests" / "cuda" / "fake"
X = np.arange(8, dtype=np.float32)


def has_nvrtc():
    try:
        scale().plan(X).ptx("sm_80")
    except ValueError as error:
        return "expected NVRTC" not in str(error)
    return True


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="NOT RUN: no NVRTC")


# ---- Calls.


@pytest.mark.skipif(len(tw.devices()) == 1, reason="NOT RUN: no GPU on this machine")
@pytest.mark.parametrize("name", CHECKS)
def test_on_a_gpu(name):
    CHECKS[name]()


@pytest.mark.skipif(len(tw.devices()) > 1, reason="NOT RUN: this machine has a GPU")
@pytest.mark.skipif(
    not (STAND_IN / "libcuda.so.1").exists(), reason="NOT RUN: no stand-in GPU was built"
)
def test_on_the_stand_in():
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{STAND_IN}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "TILEWRIGHT_NVRTC": str(STAND_IN),
        "TILEWRIGHT_CACHE_DIR": str(STAND_IN / "cache"),
        "TW_FAKE_GPU": "1",
    }
    program = pathlib.Path(__file__).with_name("cuda_kernel_calls.py")
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == list(CHECKS)


def add_one(x, y):
    y[...] = x[...] + 1


def test_tile_programs_on_the_cpu(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    call = tw.call(add_one, out_shape=tw.ShapeDtype((8,), np.float32))
    tuned = tw.autotune([{"choice": 0}, {"choice": 1}], "add one")(lambda choice: call)
    by_attributes = []

    def made(x, *, factor):
        by_attributes.append(factor)

        def times(x, y):
            y[...] = x[...] * factor

        return tw.call(times, out_shape=tw.ShapeDtype(x.shape, x.dtype))

    for cpu, want in (
        (call, X + 1),
        (call.ir(X), X + 1),
        (tw.Program.from_text(call.ir(X)), X + 1),
        (tuned, X + 1),
        (lambda x, *, factor: tuned, X + 1),
        (made, 3 * X),
    ):
        f = scale(cpu=cpu)
        np.testing.assert_array_equal(f(X, factor=3.0), want)
        out = np.zeros(8, np.float32)
        assert f(X, factor=3.0, out=out) is out
        np.testing.assert_array_equal(out, want)
    assert by_attributes == [3.0]  # each signature is planned once
    np.testing.assert_array_equal(scale(cpu=made)(X[::2], factor=np.float32(5)), 5 * X[::2])


class Mode(enum.Enum):
    add = 1
    multiply = 2


def test_attributes_reach_functions():
    seen = []

    def types(x, *, out, mode, d):
        seen.append((out, mode, d))
        return tw.ShapeDtype(x.shape, out)

    f = tw.cuda_kernel(
        "template <class T> __global__ void f();",
        "f",
        inputs="x",
        outputs="y",
        out_shape=types,
        template="y",
        attributes={
            "out": tw.Attribute("dtype", passed=False),
            "mode": Mode,
            "d": tw.Attribute(
                tw.Struct("D", n="i64", eps="f32"), lambda x, *, mode: {"n": count(x), "eps": 0.5}
            ),
        },
    )
    plan = f.plan(X, out="f64", mode=Mode.multiply)
    assert plan.outputs == [("f64", [8])]
    assert seen[0] == ("f64", "multiply", {"n": 8, "eps": 0.5})
    assert isinstance(seen[0][0], tw.DType)
    assert f.plan(X, out=np.float32, mode="add").outputs == [("f32", [8])]


# ---- What NVRTC says.


@needs_nvrtc
def test_the_log_has_the_lines_of_the_source(tmp_path):
    file = tmp_path / "mine.cu"
    file.write_text(SCALE.replace("factor);", "factr);"))
    line = 1 + [i for i, s in enumerate(SCALE.split("\n")) if "factor);" in s][0]
    for source in (file, str(file)):
        with pytest.raises(ValueError) as caught:
            scale(source).plan(X).ptx("sm_90a")
        assert re.search(rf'mine\.cu\({line}\): error: identifier "factr"', str(caught.value))
        assert str(caught.value).startswith("[scale] expected CUDA C++ that compiles for sm_90a")


@needs_nvrtc
def test_parameters_are_compared():
    wrong = SCALE.replace("int count", "long long count")
    with pytest.raises(ValueError, match="expected `count`, parameter 3 of scale, to be an i32"):
        scale(wrong).plan(X).ptx("sm_80")
    with pytest.raises(ValueError, match='identifier "scale" is undefined|no member "scale"'):
        scale("__global__ void other() {}").plan(X).ptx("sm_80")


ENUM_TEMPLATE = """
enum class Mode { add, scale = 3 };
template <typename T, Mode kMode>
__global__ void apply(const T* x, T* y) {
    *y = kMode == Mode::scale ? *x * T(7) : *x + T(1000);
}
"""


@needs_nvrtc
@pytest.mark.parametrize("parameter", ["Mode kMode", "int kMode"])
def test_enumerations_are_template_arguments(parameter):
    source = ENUM_TEMPLATE.replace("Mode kMode", parameter)
    if parameter == "int kMode":
        source = source.replace("Mode::scale", "int(Mode::scale)")
    f = tw.cuda_kernel(
        source, "apply", inputs=("x",), outputs=("y",), template=("x", "mode"),
        out_shape=lambda x: x, attributes={"mode": {"add": 0, "scale": 3}},
    )  # fmt: skip
    x = tw.ShapeDtype((1,), "f32")
    assert "mul.f32" in f.plan(x, mode="scale").ptx("sm_80")
    assert "add.f32" in f.plan(x, mode="add").ptx("sm_80")


@needs_nvrtc
def test_headers_options_and_types():
    source = '#include "mine.h"\n' + SCALE.replace("* factor", "* (factor + MINE + OTHER)")
    f = scale(source, headers={"mine.h": "#define MINE 1"}, options=["-DOTHER=2"])
    assert ".entry" in f.plan(X).ptx("sm_80")
    own = "struct Half { unsigned short bits; };\n" + SCALE.replace(
        "tw::to<T>(tw::widen(x[i]) * factor)", "x[i]"
    )
    ptx = scale(own, types={"f16": "Half"}).plan(X.astype(np.float16)).ptx("sm_80")
    assert "Half" in ptx


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_the_example_compiles(arch):
    sys.path.insert(0, str(pathlib.Path(__file__, "../../../examples/custom_op").resolve()))
    from rms_norm import make_rms_norm, rms_norm_backward

    norm = make_rms_norm(__file__)
    for x, w in (("f32", "f32"), ("bf16", "f32"), ("f16", "f16"), ("f64", "f64")):
        types = tw.ShapeDtype((8, 64), x), tw.ShapeDtype((64,), w)
        assert "rms_norm" in norm.plan(*types).ptx(arch)
        rstd = tw.ShapeDtype((8,), "f64" if x == "f64" else "f32")
        ptx = rms_norm_backward.plan(tw.ShapeDtype((8, 64), w), *types, rstd).ptx(arch)
        assert ptx.count(".entry") == 2


# ---- What is refused.


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"factor": "two"}, "expected the attribute `factor` to be f32 but got 'two'"),
        ({"facto": 2}, r"expected attributes among \(factor\) but got `facto`"),
        ({"count": 2}, "got `count`, which is computed from the inputs"),
        ({"factor": [1]}, "expected the attribute `factor` to be f32"),
    ],
)
def test_attributes_that_do_not_fit(given, text):
    with pytest.raises(TypeError, match=text):
        scale(cpu=lambda x: "")(X, **given)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"grid": 0}, ValueError, r"expected a grid of 1 to 2147483647 blocks along x but got \[0"),
        ({"grid": (1, 70000)}, ValueError, "1 to 65535 blocks along y"),
        ({"grid": lambda x: 2**31}, ValueError, "2147483647 blocks along x"),
        ({"grid": 1.5}, TypeError, "grid"),
        ({"block": 2048}, ValueError, "at most 1024 threads"),
        ({"shared": -1}, ValueError, "expected shared memory of 0 to"),
        ({"out_shape": lambda x: ()}, ValueError, "types of 1 outputs"),
        ({"out_shape": lambda x: "f32"}, TypeError, "a tw.ShapeDtype for each output"),
        ({"template": ("z",)}, ValueError, "as template argument of scale but got 'z'"),
        ({"outputs": ("x",)}, ValueError, "but got `x` twice"),
        ({"vmap_method": "magic"}, ValueError, "expected vmap_method to be one of"),
        ({"vjp": 3}, TypeError, "expected vjp to be a function or a kernel but got 3"),
        ({"cpu": 3}, TypeError, "expected cpu to give a tw.CpuFunction"),
        ({"attributes": {"count": "bf16"}}, ValueError, "bool, integers, f32 or f64 but got bf16"),
        ({"attributes": {"count": "f33"}}, TypeError, "expected a type of bool"),
        ({"launches": ["scale"]}, TypeError, "expected launches of tw.Launch"),
        ({"workspace": -5}, ValueError, "expected a workspace of 0 to"),
    ],
)
def test_options_that_do_not_fit(changes, error, text):
    with pytest.raises(error, match=text):
        scale(**changes).plan(X)


def test_arrays_that_do_not_fit():
    f = scale(cpu=tw.call(add_one, out_shape=tw.ShapeDtype((8,), np.float32)).ir(X))
    with pytest.raises(ValueError, match=r"expected 1 inputs \(x\) but got 2"):
        f(X, X)
    with pytest.raises(TypeError, match="expected `x` to be a NumPy array"):
        f([1.0])
    with pytest.raises(TypeError, match="expected `x` to be an array but got None"):
        f(None)
    with pytest.raises(ValueError, match=r"expected `x` to be f32\[8\] but got f32\[9\]"):
        f(np.zeros(9, np.float32))
    read_only = np.zeros(8, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="`y`, which is written, to be writable"):
        f(X, out=read_only)
    with pytest.raises(ValueError, match=r"expected `y` to be f32\[8\] but got f32\[7\]"):
        f(X, out=np.zeros(7, np.float32))
    with pytest.raises(ValueError, match="expected `y` apart from `x` but they share memory"):
        x = X.copy()
        f(x, out=x)
    with pytest.raises(ValueError, match="expected 1 arrays as out but got 2"):
        f(X, out=(np.zeros(8, np.float32), np.zeros(8, np.float32)))
    with pytest.raises(ValueError, match="since the kernel has no function for the CPU"):
        scale()(X)
    with pytest.raises(ValueError, match="expected a file of CUDA C"):
        scale("missing.cu")
    with pytest.raises(ValueError, match="expected a shared library but got"):
        tw.CpuFunction("missing.so", "f")
    with pytest.raises(ValueError, match="expected the text of a plan"):
        _core.CudaPlan("{}")


def test_a_vjp_by_names_that_do_not_fit():
    with pytest.raises(ValueError, match="expected inputs of vjp among x, y, dy but got `z`"):
        scale(vjp=scale(inputs=("z",), template=()))
    with pytest.raises(ValueError, match="expected outputs of vjp among dx but got `y`"):
        scale(vjp=scale(inputs=("x",)))
