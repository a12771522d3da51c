"""Kernels written in Python on PyTorch tensors."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import tilewright as tw


@tw.kernel
def add(x, y, o):
    o[...] = x[...] + y[...]


def add_call(shape, dtype=torch.float32, **options):
    return tw.call(add, out_shape=tw.ShapeDtype(shape, dtype), **options)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64]
)
def test_results_are_tensors(dtype):
    x, y = torch.arange(12).reshape(3, 4).to(dtype), torch.ones(3, 4, dtype=dtype)
    z = add_call((3, 4), dtype)(x, y)
    assert isinstance(z, torch.Tensor) and z.dtype == dtype
    assert torch.equal(z, x + y)


def test_strides_and_views():
    x, y = torch.randn(4, 3).T, torch.randn(3, 8)[:, ::2]
    assert torch.equal(add_call((3, 4))(x, y), x + y)
    assert torch.equal(add_call((3, 4))(x.expand(3, 4), y[:, :1].expand(3, 4)), x + y[:, :1])


def test_out_and_aliases():
    x, y, out = torch.randn(5), torch.randn(5), torch.zeros(5)
    assert add_call((5,))(x, y, out=out) is out
    assert torch.equal(out, x + y)
    before = x.clone()
    z = add_call((5,), aliases={0: 0})(x, y)
    assert torch.equal(z, before + y) and torch.equal(x, z)
    assert z.data_ptr() == x.data_ptr()


def test_mixed_with_numpy_and_none():
    x = torch.randn(4)
    z = add_call((4,))(x, np.ones(4, np.float32))
    assert torch.equal(torch.as_tensor(z), x + 1)

    def maybe(x, bias, o):
        o[...] = x[...] if bias is None else x[...] + bias[...]

    f = tw.call(maybe, out_shape=x)
    assert torch.equal(f(x, None), x)
    assert torch.equal(f(x, x), 2 * x)


def test_results_outlive_the_call():
    results = [add_call((1000,))(torch.full((1000,), float(i)), torch.ones(1000)) for i in range(9)]
    assert [r[0].item() for r in results] == [i + 1.0 for i in range(9)]


def test_gradients_are_not_dropped():
    x, y = torch.randn(4, requires_grad=True), torch.randn(4)
    f = add_call((4,))
    with pytest.raises(ValueError, match="expected `x` without gradients"):
        f(x, y)
    with torch.no_grad():
        assert torch.equal(f(x, y), x + y)
    assert torch.equal(f(x.detach(), y), x.detach() + y)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"output 0 .* to be f32\[4\]"):
        add_call((4,))(torch.ones(4), torch.ones(4), out=torch.ones(5))
    with pytest.raises(ValueError, match="meta|cannot read x"):
        add_call((4,))(torch.ones(4, device="meta"), torch.ones(4))


def test_programs_of_ir_text():
    x = torch.randn(6)
    f = add_call((6,))
    expected = f(x, x)
    z = tw.Program.from_text(f.ir())(x, x)
    assert isinstance(z, torch.Tensor) and torch.equal(z, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_and_its_current_stream():
    x, y = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    block = tw.BlockSpec((64, 64), lambda i, j: (i, j))
    f = tw.call(
        add,
        grid=(8, 8),
        in_specs=[block, block],
        out_specs=block,
        out_shape=tw.ShapeDtype((512, 512), torch.float32),
    )
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wide = x.clone()
        for _ in range(10):
            wide = f(wide, y)
    stream.synchronize()
    assert wide.is_cuda
    torch.testing.assert_close(wide, x + 10 * y, rtol=1e-5, atol=1e-5)


def test_without_the_front_end_of_pytorch():
    code = """
import sys, torch, numpy as np, tilewright as tw
def double(x, o):
    o[...] = x[...] * 2
y = tw.call(double, out_shape=tw.ShapeDtype((3,), np.float32))(torch.ones(3))
assert "tilewright.torch" not in sys.modules and y.tolist() == [2, 2, 2]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
