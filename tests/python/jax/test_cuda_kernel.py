"""Users' CUDA kernels as JAX ops, run by their CPU functions; attributes of ops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as Spec

import tilewright as tw
import tilewright.jax as twj


def times_on_cpu(x, w, *, factor, power):
    def kernel(x, w, y):
        y[...] = x[...] ** power * w[...] * factor

    return tw.call(kernel, out_shape=tw.ShapeDtype(x.shape, x.dtype))


def times(**changes):
    """y = factor * x ** power * w, of x (n, m) and w (m,)."""
    options = {
        "inputs": ("x", "w"),
        "outputs": ("y",),
        "out_shape": lambda x, w: x,
        "attributes": {
            "factor": tw.Attribute("f32", 2.0),
            "power": tw.Attribute(tw.Struct("Power", n="i32"), {"n": 1}, passed=False),
        },
        "cpu": lambda x, w, *, factor, power: times_on_cpu(x, w, factor=factor, power=power["n"]),
        "vjp": vjp,
        "sharding_rule": "n m, m -> n m",
    }
    return tw.cuda_kernel("__global__ void times();", "times", **{**options, **changes})


def vjp(inputs, output, dy, *, factor):
    x, w = inputs
    return factor * dy * w, (factor * dy * x).sum(0)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def near(have, want):
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-6, atol=2e-6)


X, W = normal(0, 8, 4), normal(1, 4)


def test_jit_grad_and_vmap():
    f = times()
    near(jax.jit(lambda x, w: f(x, w, factor=3.0))(X, W), 3 * X * W)
    near(f(X, W, power={"n": 2}), 2 * X**2 * W)

    def loss(f):
        return lambda x, w: jnp.sin(f(x, w)).sum()

    def three(x, w):
        return f(x, w, factor=3.0)

    near(
        jax.jit(jax.grad(loss(three), (0, 1)))(X, W),
        jax.grad(loss(lambda x, w: 3 * x * w), (0, 1))(X, W),
    )
    xs, ws = normal(2, 3, 8, 4), normal(3, 3, 4)
    for axes in ((0, None), (0, 0), (None, 0)):
        given = (xs if axes[0] == 0 else X, ws if axes[1] == 0 else W)
        near(
            jax.vmap(jax.grad(loss(three), (0, 1)), axes)(*given),
            jax.vmap(jax.grad(loss(lambda x, w: 3 * x * w), (0, 1)), axes)(*given),
        )
    both = jax.vmap(jax.vmap(three, (0, None)), (None, 0))
    near(both(xs, ws), 3 * xs[None] * ws[:, None, None])


def test_rules_for_batches():
    seen = []

    def rule(size, mapped, x, w, *, factor):
        seen.append((size, mapped, factor))
        return jnp.ones((size, 8, 4))

    near(jax.vmap(times(vmap_method=rule), (0, None))(normal(2, 3, 8, 4), W), np.ones((3, 8, 4)))
    assert seen == [(3, (True, False), 2.0)]
    with pytest.raises(ValueError, match="outputs with the batch of 3 in front"):
        jax.vmap(times(vmap_method=lambda *_: W), (0, None))(normal(2, 3, 8, 4), W)
    with pytest.raises(ValueError, match="expected the vmap_method that the kernel was made with"):
        twj.op(times(), vmap_method="grid")


def test_other_derivatives():
    def zero(inputs, output, dy):
        return jnp.zeros_like(inputs[0]), None

    op = twj.op(times(), vjp=zero)
    near(jax.grad(lambda x, w: op(x, w).sum(), (0, 1))(X, W), (0 * X, 0 * W))
    with pytest.raises(NotImplementedError, match="reverse mode"):
        jax.grad(lambda x: times(vjp=None)(x, W).sum())(X)


def test_shards(eight_devices):
    f = times()
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    rows, whole = NamedSharding(mesh, Spec("d", None)), NamedSharding(mesh, Spec())
    call = jax.jit(f, in_shardings=(rows, whole), out_shardings=rows)
    text = call.lower(X, W).compile().as_text()
    assert " all-gather(" not in text and "f32[1,4]" in text
    near(call(X, W), 2 * X * W)

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(Spec("d"), Spec()), out_specs=Spec("d"))
    def manual(x, w):
        return f(x, w)

    near(manual(X, W), 2 * X * W)


def test_export():
    f = times()
    safe = [jax.export.DisabledSafetyCheck.custom_call("tilewright_cuda_kernel")]
    exported = jax.export.export(jax.jit(f), disabled_checks=safe)(X, W)
    near(jax.export.deserialize(exported.serialize()).call(X, W), 2 * X * W)


def test_attributes_of_tile_programs():
    def text(x, *, factor):
        return f"""
func @times(%x: ref<f32[4]>, %y: ref<f32[4]>) {{
  %zero = constant 0 : i64
  %f = constant {factor} : f32
  %a = load %x[%zero : 4] : f32[4]
  %c = broadcast %f : f32[4]
  %b = mul %a, %c : f32[4]
  store %y[%zero : 4], %b
  yield
}}"""

    op = twj.op(text, vjp=lambda inputs, y, dy, *, factor: (factor * dy,))
    near(op(W, factor=3.0), 3 * W)
    near(jax.jit(jax.grad(lambda w: op(w, factor=5.0).sum()))(W), np.full(4, 5))
    near(jax.vmap(functools.partial(op, factor=3.0))(X), 3 * X)
    with pytest.raises(TypeError, match="`factor` to be a Python value, .* but it is traced"):
        jax.jit(lambda w, f: op(w, factor=f))(W, 2.0)
    with pytest.raises(TypeError, match="`factor` to be hashable but got"):
        op(W, factor=[1])
    with pytest.raises(TypeError, match="expected no attributes of a program that is IR text"):
        twj.op(text(W, factor=2.0))(W, factor=3.0)


def test_bad_input():
    f = times()
    with pytest.raises(TypeError, match=r"among \(factor, power\) but got `facto`"):
        jax.jit(lambda x: f(x, W, facto=1))(X)
    with pytest.raises(ValueError, match=r"expected 2 inputs \(x, w\) but got 1"):
        f(X)
    with pytest.raises(TypeError, match="expected no `out` with JAX arrays"):
        f(X, W, out=X)
    with pytest.raises(Exception, match="since the kernel has no function for the CPU"):
        jax.block_until_ready(times(cpu=None)(X, W))
