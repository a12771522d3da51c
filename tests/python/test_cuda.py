"""Calls on a GPU, or on the stand-in for one (tests/cuda/fake); skipped without either."""

import pathlib
import runpy

import numpy as np
import pytest

import tilewright as tw
from tilewright import _arrays

EXAMPLES = pathlib.Path(__file__, "../../../examples/python").resolve()

pytestmark = pytest.mark.skipif(len(tw.devices()) == 1, reason="NOT RUN: no GPU on this machine")


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_numpy_arrays_go_to_the_gpu_and_back():
    q, k, v, dout = (random(1, 2, 20, 16, seed=i) for i in range(4))
    slopes = tw.capture(random(2, seed=9))

    def mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    def run(device):
        aux = tw.AuxRequest(lse=True, max_scores=True)
        (out, stats), pullback = tw.flex_attention_vjp(
            q, k, v, mod, causal=True, return_aux=aux, device=device
        )
        return out, stats.lse, stats.max_scores, pullback(dout)

    *ours, gradients = run("cuda")
    *expected, expected_gradients = run("cpu")
    for got, want in zip(ours, expected, strict=True):
        assert isinstance(got, np.ndarray)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    for name in ("query", "key", "value"):
        got, want = getattr(gradients, name), getattr(expected_gradients, name)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(
        gradients.captured[0], expected_gradients.captured[0], rtol=1e-3, atol=1e-3
    )


def test_masks_of_arrays_on_the_gpu_are_built_there(capfd, monkeypatch):
    ids = np.arange(200, dtype=np.int32) // 30
    on_gpu = _arrays.to_device("test", _arrays.to_tensor("test", "ids", ids), "cuda")

    def built(array):
        documents = tw.masks.document(tw.capture(array))
        return tw.create_block_mask(documents & tw.masks.causal(), None, None, 200, 200)

    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    mask = built(on_gpu)
    assert "slow path" not in capfd.readouterr().err
    assert mask == built(ids)


def test_a_device_that_is_not_there_is_refused():
    q = random(1, 1, 8, 8)
    with pytest.raises(ValueError, match="cuda:99|below"):
        tw.flex_attention(q, q, q, device="cuda:99")
    with pytest.raises(ValueError, match='"cuda:N" but got'):
        tw.flex_attention(q, q, q, device="gpu")
    with pytest.raises(ValueError, match="engine"):
        tw.flex_attention(q, q, q, kernel_options={"engine": "fast"})


def test_torch_tensors_stay_on_the_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("NOT RUN: torch has no GPU")
    q, k, v, dout = (
        torch.randn(2, 4, 100, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out, pullback = tw.flex_attention_vjp(q, k, v, causal=True)
        gradients = pullback(dout)
    stream.synchronize()
    assert out.is_cuda and out.dtype == torch.bfloat16
    reference = [x.float().requires_grad_() for x in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*reference, is_causal=True)
    want.backward(dout.float())
    torch.testing.assert_close(out.float(), want.detach(), rtol=2e-2, atol=2e-2)
    for got, leaf in zip(gradients[:3], reference, strict=True):
        torch.testing.assert_close(got.float(), leaf.grad, rtol=5e-2, atol=5e-2)
    y = tw.rms_norm(q, torch.ones(64, device="cuda", dtype=torch.bfloat16))
    assert y.is_cuda


def test_masks_of_torch_tensors_on_the_gpu_are_built_there(capfd, monkeypatch):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("NOT RUN: torch has no GPU")
    ids = torch.arange(5000, device="cuda", dtype=torch.int32) // 300

    def built(ids):
        documents = tw.masks.document(tw.capture(ids))
        return tw.create_block_mask(documents & tw.masks.causal(), None, None, 5000, 5000)

    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    mask = built(ids)
    assert "slow path" not in capfd.readouterr().err
    assert mask == built(ids.cpu())
    q, k, v = (torch.randn(1, 2, 5000, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    want = torch.nn.functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=(ids[:, None] == ids) & torch.ones(5000, 5000, device="cuda").tril().bool(),
    )
    got = tw.flex_attention(q, k, v, block_mask=mask)
    torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=2e-2)


@tw.kernel
def softmax(x, z, *, scale):
    row = tw.load(x, other=-np.inf) * scale
    e = tw.exp(row - row.max(1, keepdims=True))
    z[...] = e / tw.sum(e, 1, keepdims=True)


def on_gpu(array):
    return _arrays.to_device("test", _arrays.to_tensor("test", "x", array), "cuda")


def test_kernels_in_python_run_where_their_arrays_are():
    rows = tw.BlockSpec((8, 64), lambda i: (i, 0))
    f = tw.call(
        softmax,
        grid=4,
        in_specs=rows,
        out_specs=rows,
        out_shape=tw.ShapeDtype((30, 50), np.float32),
        scale=2.0,
    )
    x = random(30, 50)
    expected = f(x)
    z = f(on_gpu(x))
    assert z.device.startswith("cuda")
    np.testing.assert_allclose(_arrays.to_array(z.to(False, 0)), expected, rtol=1e-5, atol=1e-7)
    program = tw.Program.from_text(f.ir())
    z = program(on_gpu(x))
    assert z.device.startswith("cuda")
    np.testing.assert_allclose(_arrays.to_array(z.to(False, 0)), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["02_iota", "06_softmax", "07_sequential_matmul", "09_histogram"])
def test_examples_of_kernels_run_on_a_gpu(name, monkeypatch, capsys):
    monkeypatch.setenv("TILEWRIGHT_DEVICE", "cuda")  # CPU arrays, copied to the GPU
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
    assert capsys.readouterr().out


def test_kernels_refuse_arrays_of_several_devices():
    def add(x, y, o):
        o[...] = x[...] + y[...]

    f = tw.call(add, out_shape=tw.ShapeDtype((4,), np.float32))
    x = random(4)
    with pytest.raises(ValueError, match="expected all inputs on one device but `y` is on cpu"):
        f(on_gpu(x), x)
    with pytest.raises(ValueError, match="output 0 on cuda:0, where the inputs are"):
        f(on_gpu(x), on_gpu(x), out=x.copy())
    checked = tw.call(add, out_shape=tw.ShapeDtype((4,), np.float32), interpret=True)
    with pytest.raises(ValueError, match="CPU memory in the checked mode"):
        checked(on_gpu(x), on_gpu(x))
