"""The norms against torch's own, forward and backward."""

import dense_torch as dense
import pytest
import torch

import tilewright.torch as twt


def rms(x, weight=None, eps=1e-5):
    dims = tuple(range(-1 if weight is None else -weight.dim(), 0))
    y = x * torch.rsqrt((x * x).mean(dims, keepdim=True) + eps)
    return y if weight is None else y * weight


def layer(x, weight=None, bias=None, eps=1e-5):
    shape = x.shape[-1:] if weight is None else weight.shape
    return torch.nn.functional.layer_norm(x, shape, weight, bias, eps)


def same(have, want, inputs):
    for x, y in zip(have, want, strict=True):
        dense.close(x, y)
    for x, y in zip(dense.gradients(have, inputs), dense.gradients(want, inputs), strict=True):
        dense.close(x, y)


@pytest.mark.parametrize("shape, dims", [((4, 33), 1), ((2, 3, 5, 7), 2), ((1, 1), 1), ((9,), 1)])
@pytest.mark.parametrize("has_weight", [True, False])
def test_rms_norm(shape, dims, has_weight):
    x = dense.normal(*shape)
    weight = dense.normal(*shape[len(shape) - dims :]) if has_weight else None
    inputs = [t for t in (x, weight) if t is not None]
    for _ in range(3):
        same([twt.rms_norm(x, weight)], [rms(x, weight)], inputs)
    same([twt.rms_norm(x, weight, 0.5)], [rms(x, weight, 0.5)], inputs)


@pytest.mark.parametrize("given", [0, 1, 2])
def test_layer_norm(given):
    x, weight, bias = dense.normal(6, 33), dense.normal(33), dense.normal(33)
    tensors = [x, weight, bias][: given + 1]
    same([twt.layer_norm(*tensors)], [layer(*tensors)], tensors)


@pytest.mark.parametrize("norm, reference", [(twt.rms_norm, rms), (twt.layer_norm, layer)])
def test_residual_and_stats(norm, reference):
    x, residual, weight = dense.normal(5, 16), dense.normal(5, 16), dense.normal(16)
    y, total, *stats = norm(x, weight, residual=residual, return_stats=True)
    want = reference(x + residual, weight), x + residual
    same((y, total), want, [x, residual, weight])
    assert [s.shape for s in stats] == [(5,)] * (1 if norm is twt.rms_norm else 2)
    same([norm(x, weight, residual=residual)[1]], [x + residual], [x, residual])


def test_strides_and_dtypes():
    x = torch.randn(8, 6, 10)[::2, :, ::2].transpose(0, 1).requires_grad_()
    weight = dense.normal(5, dtype=torch.bfloat16)
    y = twt.rms_norm(x, weight)
    assert y.dtype == torch.bfloat16
    dense.close(y, rms(x.double(), weight.double()), 1e-2)
    y.sum().backward()
    assert x.grad.dtype == torch.float32
    assert weight.grad.dtype == torch.bfloat16


def test_transforms():
    x, weight = dense.normal(4, 3, 8, grad=False), dense.normal(8, grad=False)
    per_example = torch.func.vmap(torch.func.grad(lambda x: twt.rms_norm(x, weight).sum()))
    want = torch.func.vmap(torch.func.grad(lambda x: rms(x, weight).sum()))
    dense.close(per_example(x), want(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    x, weight = dense.normal(4, 8), dense.normal(8)
    compiled = torch.compile(
        lambda x, w: twt.rms_norm(x * 2, w).sin(), backend=backend, fullgraph=True
    )
    same([compiled(x, weight)], [rms(x * 2, weight).sin()], [x, weight])


def test_operator():
    x, weight = dense.normal(4, 8, grad=False), dense.normal(8, grad=False)
    from tilewright.torch import _norm

    site = _norm._site(_norm._Spec(True, True, False, False, 1e-5))
    torch.library.opcheck(torch.ops.tilewright.norm.default, ([x, weight], site.text))


def test_second_derivatives_and_forward_mode_are_refused():
    from torch.autograd import forward_ad

    x = dense.normal(4, 8)
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(x.detach(), x.detach())
        for norm in (twt.rms_norm, lambda x: twt.layer_norm(x, torch.ones(8, dtype=x.dtype))):
            with pytest.raises(NotImplementedError, match="forward mode"):
                norm(dual)
    gradient = torch.autograd.grad(twt.rms_norm(x).sum(), x, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="second"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"x": 3}, TypeError, "expected x to be a tensor but got int"),
        ({"x": torch.ones(2, dtype=torch.int32)}, ValueError, "expected x of float32"),
        ({"x": torch.ones(())}, RuntimeError, "rank 1 or more"),
        ({"x": torch.ones(2, 3), "weight": torch.ones(2)}, ValueError, "shape ends that of x"),
        ({"x": torch.ones(3), "bias": torch.ones(3)}, ValueError, "weight with the bias"),
        ({"x": torch.ones(3), "residual": torch.ones(1)}, ValueError, "expected residual"),
        ({"x": torch.ones(3), "eps": -1}, ValueError, "eps of at least 0"),
        ({"x": torch.ones(3), "eps": None}, TypeError, "eps to be a number"),
        ({"x": torch.ones(3, device="meta"), "weight": torch.ones(3)}, ValueError, "device"),
    ],
)
def test_bad_input(arguments, error, text):
    with pytest.raises(error, match=text):
        twt.layer_norm(**arguments)


@pytest.mark.parametrize("compiled", [False, True])
def test_nested_tensors(compiled):
    """Of the jagged layout: rows are normalised as in the sequences alone."""
    lengths = (5, 0, 9, 1)
    rows = torch.randn(sum(lengths), 4, 8, dtype=torch.float64)
    offsets = torch.tensor([0, 5, 5, 14, 15])
    weight, bias = torch.randn(2, 8, dtype=torch.float64)

    def nested(values):
        return torch.nested.nested_tensor_from_jagged(values, offsets)

    def norm(x, w, b, residual):
        return twt.layer_norm(x, w, b, residual=residual, return_stats=True)

    have_in, want_in = ([t.clone().requires_grad_() for t in (rows, weight, bias)] for _ in "ab")
    x = nested(have_in[0])
    call = torch.compile(norm, backend="eager", fullgraph=True) if compiled else norm
    have = call(x, *have_in[1:], x)
    want = norm(*want_in, want_in[0])
    for a, b in zip(have, want, strict=True):
        assert a.is_nested and a.shape[:2] == x.shape[:2]
        dense.close(a.values(), b)
    for a, b in zip(
        dense.gradients([t.values() for t in have[:2]], have_in),
        dense.gradients(want[:2], want_in), strict=True,
    ):  # fmt: skip
        dense.close(a, b)
    moved = twt.rms_norm(x.transpose(1, 2), weight)
    dense.close(moved.transpose(1, 2).values(), twt.rms_norm(rows, weight))
    with pytest.raises(
        ValueError, match=r"\[rms_norm\] expected to normalise over dimensions after"
    ):
        twt.rms_norm(x.transpose(1, 2).transpose(2, 3), weight)
    with pytest.raises(
        ValueError, match=r"\[rms_norm\] expected a nested residual .* dense tensor"
    ):
        twt.rms_norm(x, weight, residual=rows)
    strided = torch.nested.nested_tensor([torch.ones(2, 8)], layout=torch.strided)
    with pytest.raises(
        ValueError, match=r"\[rms_norm\] expected a nested x of layout torch.jagged"
    ):
        twt.rms_norm(strided, torch.ones(8))
