"""The norms in JAX against jnp: values, gradients, dtypes, vmap, shards."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_attention import collectives
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec
from jax.test_util import check_grads

import tilewright.jax as twj

DTYPES = [jnp.float64, jnp.float32, jnp.float16, jnp.bfloat16]


@functools.partial(jax.jit, static_argnames="layer")
def reference(x, weight=None, bias=None, eps=1e-5, residual=None, layer=False):
    """The definition, in float64 if that is enabled."""
    wide = jnp.promote_types(jnp.float32, jax.dtypes.canonicalize_dtype(jnp.float64))
    out = x.dtype if weight is None else weight.dtype
    x = x.astype(wide) + (0 if residual is None else residual.astype(wide))
    axes = tuple(range(x.ndim - (1 if weight is None else weight.ndim), x.ndim))
    if layer:
        x = x - x.mean(axes, keepdims=True)
    y = x * jax.lax.rsqrt((x * x).mean(axes, keepdims=True) + eps)
    y = y if weight is None else y * weight.astype(wide)
    y = y if bias is None else y + bias.astype(wide)
    return y.astype(out)


def close(have, want, units=8, *through):
    """Asserts equality within some units in the last place of the largest value, in the coarsest of
    the result's dtype and those that values went `through`."""
    assert have.shape == want.shape
    assert have.dtype == want.dtype
    unit = max(float(jnp.finfo(dtype).eps) for dtype in (want.dtype, *through))
    have, want = (np.asarray(a, np.float64) for a in (have, want))
    error = np.abs(have - want).max(initial=0)
    assert error <= units * unit * max(1.0, np.abs(want).max(initial=0))


def normal(seed, shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


def gradients(norm, dy):
    """Gradients of <norm, dy> with respect to x and the weight."""
    return jax.grad(lambda x, w: jnp.vdot(norm(x, w).astype(dy.dtype), dy).astype(dy.dtype), (0, 1))


@pytest.mark.parametrize("pair", itertools.product(DTYPES, DTYPES))
def test_every_pair_of_dtypes(pair, x64):
    x, weight = normal(0, (6, 3, 16), pair[0]), 1 + normal(1, (3, 16), pair[1])
    dy = normal(2, x.shape, jnp.float64)
    statistics = jnp.float64 if pair[0] == jnp.float64 else jnp.float32
    close(jax.jit(twj.rms_norm)(x, weight), reference(x, weight), 8, statistics)
    have = gradients(twj.rms_norm, dy)(x, weight)
    want = jax.jit(gradients(reference, dy))(x, weight)
    for a, b in zip(have, want, strict=True):
        close(a, b, 8, statistics, weight.dtype)  # the gradient of y has the weight's dtype
    assert [a.dtype for a in have] == [x.dtype, weight.dtype]


@pytest.mark.parametrize("layer", [False, True])
def test_arguments_and_results(layer):
    x, residual, weight, bias = normal(0, (5, 4, 8)), normal(1, (5, 4, 8)), normal(2, (8,)), None
    norm = twj.layer_norm if layer else twj.rms_norm
    bias = {"bias": normal(3, (8,))} if layer else {}
    close(norm(x), reference(x, layer=layer))
    y, total, *stats = norm(x, weight, **bias, eps=0.1, residual=residual, return_stats=True)
    close(y, reference(x, weight, **bias, eps=0.1, residual=residual, layer=layer))
    close(total, x + residual)
    assert len(stats) == (2 if layer else 1)
    if layer:
        close(stats[0], total.mean(-1))
    close(stats[-1], jax.lax.rsqrt(total.var(-1) + 0.1 if layer else (total**2).mean(-1) + 0.1))


@pytest.mark.parametrize("layer", [False, True])
def test_check_grads(layer, x64):
    norm = twj.layer_norm if layer else twj.rms_norm
    x, residual = (normal(i, (3, 2, 5), jnp.float64) for i in range(2))
    weights = [normal(2, (2, 5), jnp.float64)] + [normal(3, (2, 5), jnp.float64)] * layer

    def everything(x, residual, *weights):
        return norm(x, *weights, residual=residual, return_stats=True)

    check_grads(everything, (x, residual, *weights), 1, modes=["rev"])
    check_grads(lambda x: norm(x), (x,), 1, modes=["rev"])


def test_vmap_of_values_and_of_gradients():
    x, weights, dy = normal(0, (4, 3, 8)), normal(1, (4, 8)), normal(2, (3, 8))
    close(jax.vmap(twj.rms_norm, (0, None))(x, weights[0]), reference(x, weights[0]))
    close(jax.vmap(twj.rms_norm, (1, None), 1)(x, weights[0]), reference(x, weights[0]))
    close(jax.vmap(twj.rms_norm)(x, weights), jax.vmap(reference)(x, weights))
    have = jax.jit(jax.vmap(gradients(twj.rms_norm, dy)))(x, weights)
    want = jax.jit(jax.vmap(gradients(reference, dy)))(x, weights)
    for a, b in zip(have, want, strict=True):
        close(a, b, 16)


@pytest.mark.skipif(jax.device_count() == 1, reason="NOT RUN: needs several devices")
@pytest.mark.parametrize("manual", [False, True])
def test_batch_over_devices(manual):
    """Nothing is gathered, and the weight's gradient is summed once; on eight host devices or all
    GPUs."""
    x, weight = normal(0, (16, 32, 64)), normal(1, (32, 64), jnp.bfloat16)
    dy = normal(2, (64,))

    def loss(x, weight):
        return (twj.rms_norm(x, weight).astype(jnp.float32) * dy).sum()

    mesh = jax.make_mesh(
        (jax.device_count(),), ("batch",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    inputs = (
        jax.device_put(x, NamedSharding(mesh, Spec("batch"))),
        jax.device_put(weight, NamedSharding(mesh, Spec())),
    )

    def over_devices(f, out_specs):
        if manual:
            f = jax.shard_map(f, mesh=mesh, in_specs=(Spec("batch"), Spec()), out_specs=out_specs)
        return jax.jit(f).lower(*inputs).compile()

    forward = over_devices(twj.rms_norm, Spec("batch"))
    assert collectives(forward) == []
    close(forward(*inputs), reference(x, weight))
    backward = over_devices(jax.grad(loss, (0, 1)), (Spec("batch"), Spec()))
    assert collectives(backward) == ["all-reduce"]
    have, want = backward(*inputs), jax.grad(loss, (0, 1))(x, weight)
    assert have[0].sharding.spec == Spec("batch")
    close(have[0], want[0])
    close(have[1], want[1], 2)  # one more rounding on every device


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((2, 3), (4,)), r"\[rms_norm\] expected a weight whose shape ends that of x"),
        (((), None), r"\[rms_norm\] expected x of rank 1 or more"),
    ],
)
def test_shapes_that_do_not_fit(arguments, message):
    x, weight = (None if shape is None else jnp.ones(shape) for shape in arguments)
    with pytest.raises(ValueError, match=message):
        twj.rms_norm(x, weight)


def test_bad_arguments_name_themselves():
    x = jnp.ones((2, 3))
    with pytest.raises(TypeError, match="expected x of float32, .* but got int32"):
        twj.rms_norm(jnp.ones(3, jnp.int32))
    with pytest.raises(ValueError, match="expected residual of the shape and dtype of x"):
        twj.rms_norm(x, residual=jnp.ones(3))
    with pytest.raises(ValueError, match=r"\[rms_norm\] expected eps of at least 0 but got -1"):
        twj.rms_norm(x, eps=-1.0)
    with pytest.raises(NotImplementedError, match=r"^\[rms_norm\] .* once, in reverse mode"):
        jax.hessian(lambda x: twj.rms_norm(x).sum())(x)
