"""Users' CUDA kernels as PyTorch operators, run by their CPU functions."""

import pytest
import torch

import tilewright as tw
import tilewright.torch as twt


def scaled_on_cpu(x, w, *, factor):
    def kernel(x, w, y, total):
        y[...] = x[...] * w[...] * factor
        total[...] = x[...].sum(1)

    return tw.call(kernel, out_shape=types(x, w))


def types(x, w):
    return tw.ShapeDtype(x.shape, x.dtype), tw.ShapeDtype(x.shape[:1], x.dtype)


def vjp(inputs, outputs, cotangents, *, factor):
    x, w = inputs
    dy, dtotal = cotangents
    return factor * dy * w + dtotal[:, None], (factor * dy * x).sum(0)


def scaled(**changes):
    """y = factor * x * w and its row sums, for x (n, m) and w (m,)."""
    options = {
        "inputs": ("x", "w"),
        "outputs": ("y", "total"),
        "out_shape": types,
        "attributes": {
            "factor": tw.Attribute("f32", 2.0),
            "mode": tw.Attribute({"a": 0, "b": 1}, "a"),
            "kind": tw.Attribute("dtype", "f32"),
            "d": tw.Attribute(tw.Struct("D", n="i64"), {"n": 3}),
            "count": tw.Attribute("i64", lambda x, w: x.shape[0]),
        },
        "cpu": scaled_on_cpu,
        "vjp": vjp,
    }
    return tw.cuda_kernel("__global__ void scaled();", "scaled", **{**options, **changes})


def plain(x, w, factor=2.0):
    return x * w * factor, x.sum(1)


def tensors(*shape):
    return torch.randn(*shape, requires_grad=True), torch.randn(shape[-1], requires_grad=True)


def close(have, want):
    for a, b in zip(have, want, strict=True):
        torch.testing.assert_close(a, b)


def gradients(f, x, w):
    y, total = f(x, w)
    return torch.autograd.grad(y.sin().sum() + total.cos().sum(), (x, w))


def test_kernels_whose_calls_give_no_attributes():
    f = tw.cuda_kernel(
        "__global__ void squared(const float* x, float* y, int count);", "squared",
        inputs=("x",), outputs=("y",), out_shape=lambda x: x,
        attributes={"count": tw.Attribute("i32", lambda x: x.shape[0])},
        cpu=tw.call(lambda x, y: y.__setitem__(..., x[...] * x[...]), out_shape=lambda x: x),
        vjp=lambda inputs, y, dy: (2 * inputs[0] * dy,),
    )  # fmt: skip
    x = torch.randn(4, requires_grad=True)
    for call in (f, torch.compile(f, backend="aot_eager")):
        (dx,) = torch.autograd.grad(call(x).sum(), (x,))
        torch.testing.assert_close(dx, 2 * x)
    batch = torch.randn(3, 4)
    torch.testing.assert_close(torch.func.vmap(f)(batch), batch**2)
    square = torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))
    torch.testing.assert_close(square(batch), 2 * batch)


def test_autograd():
    f = scaled()
    x, w = tensors(5, 4)
    close(f(x, w, factor=3.0), plain(x, w, 3.0))
    close(gradients(f, x, w), gradients(plain, x, w))
    strided = torch.randn(4, 5, requires_grad=True).t()
    close(f(strided, w), plain(strided, w))
    frozen = w.detach()
    (dx,) = torch.autograd.grad(f(x, frozen)[0].sum(), (x,))
    torch.testing.assert_close(dx, (2 * frozen).expand(5, 4))


def test_opcheck():
    f = twt.op(scaled())
    values = {"factor": 2.0, "mode": "b", "kind": "f64", "d": "n=3"}
    torch.library.opcheck(f.operator, (*tensors(5, 4), ""), values)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile(backend, dynamic):
    f = scaled()
    f(*tensors(2, 4))  # makes the operator

    def loss(x, w):
        y, total = f(x, w, factor=3.0)
        return y.sin(), total.cos()

    compiled = torch.compile(loss, fullgraph=True, backend=backend, dynamic=dynamic)
    for rows in (5, 6, 7):
        x, w = tensors(rows, 4)
        close(gradients(compiled, x, w), gradients(loss, x, w))


def test_dynamic_shapes_compile_once():
    op = twt.op(scaled())
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(
        lambda x, w: op(x, w)[0], fullgraph=True, backend=backend, dynamic=True
    )
    for rows in (5, 6, 7):
        x, w = tensors(rows, 4)
        torch.testing.assert_close(compiled(x, w), plain(x, w)[0])
    assert len(graphs) == 1


def test_export():
    op = twt.op(scaled())

    class Module(torch.nn.Module):
        def forward(self, x, w):
            return op(x, w)[0]

    x, w = (t.detach() for t in tensors(5, 4))
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Module(), (x, w), dynamic_shapes={"x": {0: rows}, "w": None})
    assert "tilewright_cuda.scaled" in str(program.graph)
    other = torch.randn(9, 4)
    torch.testing.assert_close(program.module()(other, w), plain(other, w)[0])


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 0)])
def test_vmap(axes):
    f = scaled()
    xs = torch.randn(3, 5, 4).movedim(0, axes[0] or 0) if axes[0] is not None else torch.randn(5, 4)
    ws = torch.randn(3, 4) if axes[1] is not None else torch.randn(4)
    close(torch.func.vmap(f, axes)(xs, ws), torch.func.vmap(plain, axes)(xs, ws))

    def loss(f):
        return lambda x, w: f(x, w)[0].sin().sum() + f(x, w)[1].cos().sum()

    close(
        torch.func.vmap(torch.func.grad(loss(f), (0, 1)), axes)(xs, ws),
        torch.func.vmap(torch.func.grad(loss(plain), (0, 1)), axes)(xs, ws),
    )

    def total(f):
        return lambda x, w: torch.func.vmap(loss(f), axes)(x, w).sum()

    close(torch.func.grad(total(f), (0, 1))(xs, ws), torch.func.grad(total(plain), (0, 1))(xs, ws))


def test_nested_vmap_and_rules():
    f = scaled()
    xs, ws = torch.randn(3, 5, 4), torch.randn(2, 4)
    both = lambda f: torch.func.vmap(torch.func.vmap(f, (0, None)), (None, 0))  # noqa: E731
    close(both(f)(xs, ws), both(plain)(xs, ws))

    def rule(size, mapped, x, w, *, factor):
        return torch.ones(size, 5, 4), torch.full((size, 5), factor)

    y, total = torch.func.vmap(scaled(vmap_method=rule), (0, None))(xs, ws[0])
    assert y.shape == (3, 5, 4) and (total == 2).all()


def test_without_a_derivative():
    y, _ = scaled(vjp=None)(*tensors(5, 4))
    with pytest.raises(NotImplementedError, match=r"\[scaled\] expected a kernel with a vjp"):
        y.sum().backward()


def test_bad_input():
    f = scaled()
    x, w = (t.detach() for t in tensors(5, 4))
    with pytest.raises(TypeError, match=r"expected 2 inputs \(x, w\) but got 1"):
        f(x)
    with pytest.raises(TypeError, match="expected `w` to be a tensor but got ndarray"):
        f(x, w.numpy())
    with pytest.raises(TypeError, match="but got `facto`"):
        f(x, w, facto=1)
    with pytest.raises(TypeError, match="expected the attribute `factor` to be f32 but got 'a'"):
        f(x, w, factor="a")
    with pytest.raises(ValueError, match="one of 'a', 'b' but got 'c'"):
        f(x, w, mode="c")
    with pytest.raises(ValueError, match="since the kernel has no function for the CPU"):
        scaled(cpu=None)(x, w)
    assert f(x.to("meta"), w.to("meta"))[0].is_meta  # only shapes
    with pytest.raises(TypeError, match="expected a tw.cuda_kernel but got"):
        twt.op(lambda x: x)
