"""Kernels written in Python: blocks, masks, loops, functions, arrays in and out, errors."""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

F32 = np.float32


def rand(*shape, seed=0, dtype=F32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def run(kernel, out, *inputs, **options):
    """Runs with outputs of these (shape, dtype)s; one that is not in a list is the result."""
    single = not isinstance(out, list)
    shapes = [tw.ShapeDtype(*o) for o in ([out] if single else out)]
    return tw.call(kernel, out_shape=shapes[0] if single else tuple(shapes), **options)(*inputs)


# ---- The form of API.md.


@tw.kernel
def scaled_add(x, y, o, *, alpha):
    i = tw.program_id(0)
    o[...] = x[...] * alpha + tw.where(i % 2 == 0, y[...], 0)


def scaled_add_call(**options):
    rows = tw.BlockSpec((4, 64), lambda i: (i, 0))
    return tw.call(
        scaled_add,
        grid=(8,),
        in_specs=[rows] * 2,
        out_specs=rows,
        out_shape=tw.ShapeDtype((32, 64), F32),
        alpha=2.0,
        **options,
    )


def scaled_add_expected(x, y):
    return x * 2 + np.where((np.arange(32) // 4 % 2 == 0)[:, None], y, 0)


@pytest.mark.parametrize("interpret", [False, True])
def test_blocks_statics_and_where(interpret):
    f = scaled_add_call(interpret=interpret)
    x, y = rand(32, 64), rand(32, 64, seed=1)
    z = f(x, y)
    assert type(z) is np.ndarray and z.dtype == F32
    np.testing.assert_array_equal(z, scaled_add_expected(x, y))


def test_a_signature_is_traced_once():
    traces = []

    def double(x, o):
        traces.append(x.shape)
        o[...] = x[...] * 2

    f = tw.call(double, out_shape=lambda x: tw.ShapeDtype(x.shape, x.dtype))
    for n in (5, 7, 5, 7):
        np.testing.assert_array_equal(f(np.arange(n)), np.arange(n) * 2)
    assert traces == [(5,), (7,)]
    assert f.num_traces == 2
    assert f(np.arange(5, dtype=F32)).dtype == F32
    assert f.num_traces == 3


def test_the_number_of_kept_traces_is_bounded():
    f = tw.call(
        lambda x, o: o.at[...].store(x[...] + 1),
        out_shape=lambda x: tw.ShapeDtype(x.shape, x.dtype),
    )
    for n in range(1, 300):
        f(np.zeros(n, F32))
    assert f.num_traces == 256


def test_strided_inputs_and_out():
    f = scaled_add_call()
    x, y = rand(64, 32).T, rand(32, 128, seed=1)[:, ::2]
    expected = scaled_add_expected(x[:, :64], y)
    np.testing.assert_array_equal(f(x, y), expected)
    wide = np.zeros((32, 128), F32)
    out = wide[:, ::2]
    assert f(x, y, out=out) is out
    np.testing.assert_array_equal(wide[:, ::2], expected)
    assert not wide[:, 1::2].any()


def test_several_outputs_are_a_tuple():
    def both(x, a, b):
        a[...] = x[...] + 1
        b[...] = (x[...] * 2).to(np.float64)

    a, b = run(both, [((6,), F32), ((6,), np.float64)], np.arange(6, dtype=F32))
    np.testing.assert_array_equal(a, np.arange(6) + 1)
    np.testing.assert_array_equal(b, np.arange(6) * 2.0)
    assert b.dtype == np.float64


@pytest.mark.parametrize(
    "dtype",
    [bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
     np.float16, F32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn],
)  # fmt: skip
def test_dtypes_in_and_out(dtype):
    x = np.arange(12).reshape(3, 4).astype(dtype)

    def copy(x, o):
        assert x.dtype == dtype and x[...].dtype == dtype
        o[...] = x[...]

    z = run(copy, ((3, 4), dtype), x)
    assert z.dtype == x.dtype
    np.testing.assert_array_equal(z, x)


def test_ir_and_other_forms():
    f = scaled_add_call()
    with pytest.raises(ValueError, match=r"\[ir\] expected inputs"):
        f.ir()
    shape = tw.ShapeDtype((32, 64), F32)
    text = f.ir(shape, shape)
    assert text.startswith("func @scaled_add(%x: ref<f32[32, 64]>")
    f(rand(32, 64), rand(32, 64))
    assert f.ir() == text
    assert "program scaled_add" in f.bytecode()
    assert "kernel_scaled_add" in f.cuda("sm_90a")
    with pytest.raises(ValueError, match="sm_12"):
        f.cuda("sm_12")


def test_errors_name_the_line():
    def narrow(x, o):
        value = x[...].to(np.float64)
        o[...] = value

    line = narrow.__code__.co_firstlineno + 2
    with pytest.raises(
        ValueError, match=rf"convert it with .to\(f32\) \(at .*test_kernels.py:{line}\)"
    ):
        run(narrow, ((4,), F32), np.zeros(4, F32))
