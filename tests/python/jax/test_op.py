"""twj.op: tile programs and Pallas kernels as ops that differentiate, batch and shard."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as Spec

import tilewright.jax as twj

SINE = """
func @sine(%x: ref<f32[8]>, %y: ref<f32[8]>) {
  %zero = constant 0 : i64
  %a = load %x[%zero : 8] : f32[8]
  %b = sin %a : f32[8]
  store %y[%zero : 8], %b
  yield
}
"""


def scaled(x, s):
    """IR text for x (n, 4) and s (4,): y = x * s, total = sum over rows of y."""
    n = x.shape[0]
    return f"""
func @scaled(%x: ref<f32[{n}, 4]>, %s: ref<f32[4]>, %y: ref<f32[{n}, 4]>, %total: ref<f32[4]>) {{
  %zero = constant 0 : i64
  %a = load %x[%zero : {n}, %zero : 4] : f32[{n}, 4]
  %b = load %s[%zero : 4] : f32[4]
  %c = expand_dims %b axis 0 : f32[1, 4]
  %d = broadcast %c : f32[{n}, 4]
  %e = mul %a, %d : f32[{n}, 4]
  store %y[%zero : {n}, %zero : 4], %e
  %f = reduce %e sum axis 0 : f32[4]
  store %total[%zero : 4], %f
  yield
}}
"""


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def near(have, want):
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-6, atol=2e-6)


def test_ir_text_with_a_gradient():
    sine = twj.op(SINE, vjp=lambda inputs, output, dy: (jnp.cos(inputs[0]) * dy,))
    x = normal(0, 8)
    near(jax.jit(sine)(x), jnp.sin(x))
    near(jax.grad(lambda v: sine(v).sum())(x), jnp.cos(x))
    xs = normal(1, 3, 2, 8)
    near(jax.vmap(jax.vmap(sine))(xs), jnp.sin(xs))
    near(jax.vmap(jax.grad(lambda v: sine(v).sum()))(xs[0]), jnp.cos(xs[0]))
    near(jax.vmap(sine, in_axes=1, out_axes=1)(xs[0].T), jnp.sin(xs[0].T))

    saved = twj.op(SINE, vjp=(lambda x: (jnp.sin(x), x), lambda x, dy: (jnp.cos(x) * dy,)))
    near(jax.grad(lambda v: saved(v).sum())(x), jnp.cos(x))


def test_programs_made_for_shapes():
    op = twj.op(scaled)
    x, s = normal(0, 6, 4), normal(1, 4)
    near(op(x, s), (x * s, (x * s).sum(0)))
    near(op(x[:3], s), (x[:3] * s, (x[:3] * s).sum(0)))
    xs = normal(2, 5, 6, 4)
    for method in ("grid", "sequential"):
        y, total = jax.vmap(twj.op(scaled, vmap_method=method), in_axes=(0, None))(xs, s)
        near((y, total), (xs * s, (xs * s).sum(1)))


def test_an_elementwise_program_takes_the_batch_as_leading_dimensions():
    def double(x):
        extents = ", ".join(map(str, x.shape))
        whole = ", ".join(f"%zero : {n}" for n in x.shape)
        return f"""
func @double(%x: ref<f32[{extents}]>, %y: ref<f32[{extents}]>) {{
  %zero = constant 0 : i64
  %a = load %x[{whole}] : f32[{extents}]
  %b = add %a, %a : f32[{extents}]
  store %y[{whole}], %b
  yield
}}
"""

    x = normal(0, 3, 5)
    for method in ("expand_dims", "broadcast_all"):
        near(jax.vmap(twj.op(double, vmap_method=method))(x), 2 * x)


def test_memory_updated_in_place():
    text = """
func @put(%x: ref<f32[4]> alias 0, %v: ref<f32>, %y: ref<f32[4]> alias 0) {
  %two = constant 2 : i64
  %a = load %v[] : f32
  store %y[%two], %a
  yield
}
"""
    put = twj.op(text)
    x = jnp.arange(4.0)
    near(jax.jit(put)(x, jnp.float32(9)), jnp.array([0.0, 1, 9, 3]))
    near(x, jnp.arange(4.0))


def test_pallas_kernels(eight_devices):
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.exp(x_ref[...])

    def exponential(x):
        return twj.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    op = twj.op(exponential, vjp=lambda inputs, y, dy: y * dy, sharding_rule="b n -> b n")
    x = normal(0, 8, 16)
    near(jax.jit(op)(x), jnp.exp(x))
    near(jax.grad(lambda v: op(v).sum())(x), jnp.exp(x))
    near(jax.vmap(op)(x[None]), jnp.exp(x)[None])
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, Spec("d", None))
    compiled = jax.jit(op, in_shardings=sharding, out_shardings=sharding).lower(x).compile()
    assert "all-gather" not in compiled.as_text()
    assert f"f32[{8 // 4},16]" in compiled.as_text()
    near(compiled(jax.device_put(x, sharding)), jnp.exp(x))


def test_sharding_and_sums_over_shards(eight_devices):
    rule = ("b n, n -> b n, n", {"reduction_factors": ("b",)})
    op = twj.op(scaled, sharding_rule=rule)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    rows, whole = NamedSharding(mesh, Spec("d", None)), NamedSharding(mesh, Spec())
    x, s = normal(0, 16, 4), normal(1, 4)
    call = jax.jit(op, in_shardings=(rows, whole), out_shardings=(rows, whole))
    text = call.lower(x, s).compile().as_text()
    assert text.count(" all-gather(") == 0
    assert text.count(" all-reduce(") == 1
    near(call(x, s), (x * s, (x * s).sum(0)))

    # Without a rule, or with a reduction that is not listed, the op runs on whole arrays.
    for other in (None, "b n, n -> b n, n"):
        unsplit = jax.jit(
            twj.op(scaled, sharding_rule=other),
            in_shardings=(rows, whole),
            out_shardings=(whole, whole),
        )
        with pytest.warns(UserWarning, match="operand 0 is gathered along dimension 0"):
            near(unsplit(x, s), (x * s, (x * s).sum(0)))

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(Spec("d"), Spec()), out_specs=Spec("d"))
    def manual(x, s):
        return twj.op(scaled)(x, s)[0]

    near(manual(x, s), x * s)


def by_hand(inputs, outputs, cotangents):
    x, s = inputs
    dy, dtotal = cotangents
    dy = dy + dtotal
    return dy * s, (dy * x).sum(0)


def with_residuals():
    plain = twj.op(scaled)
    return (
        lambda x, s: (plain(x, s), (x, s)),
        lambda saved, cotangents: by_hand(saved, None, cotangents),
    )


@pytest.mark.parametrize("pair", [False, True])
def test_gradients_of_replicated_inputs_under_shard_map(eight_devices, pair):
    op = twj.op(scaled, vjp=with_residuals() if pair else by_hand)
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    x, s, dy = normal(0, 16, 4), normal(1, 4), normal(2, 16, 4)

    def gradients(x, s, dy):
        y, pullback = jax.vjp(lambda x, s: op(x, s)[0], x, s)
        return y, *pullback(dy)

    def shards(rows, whole=None):
        whole = Spec() if whole is None else whole
        return jax.jit(
            jax.shard_map(
                gradients, mesh=mesh, in_specs=(rows, whole, rows), out_specs=(rows, rows, whole)
            )
        )

    want = x * s, dy * s, (dy * x).sum(0)
    near(shards(Spec(("a", "b")))(x, s, dy), want)
    near(shards(Spec("b"))(x, s, dy), want)
    # What varies over one axis is only summed over the other one.
    stacked = jnp.concatenate([s, 2 * s])
    y, dx, ds = shards(Spec(("a", "b")), Spec("a"))(x, stacked, dy)
    near(y, jnp.concatenate([x[:8] * s, x[8:] * 2 * s]))
    near(ds, jnp.concatenate([(dy * x)[:8].sum(0), (dy * x)[8:].sum(0)]))

    def loss(x, s):
        mapped = jax.shard_map(
            lambda x, s: op(x, s)[0], mesh=mesh, in_specs=(Spec("b"), Spec()), out_specs=Spec("b")
        )
        return (mapped(x, s) * dy).sum()

    near(jax.jit(jax.grad(loss, (0, 1)))(x, s), want[1:])


def test_bad_input():
    with pytest.raises(ValueError, match="expected `x` to be f32\\[8\\] but got"):
        twj.op(SINE)(jnp.zeros(9))
    with pytest.raises(ValueError, match="expected `x` to be f32\\[8\\] but got int32"):
        twj.op(SINE)(jnp.zeros(8, jnp.int32))
    with pytest.raises(TypeError, match="expected 1 arrays but got 2"):
        twj.op(SINE)(jnp.zeros(8), jnp.zeros(8))
    with pytest.raises(ValueError, match="line 1, column 1"):
        twj.op("nonsense")
    with pytest.raises(ValueError, match="expected vmap_method"):
        twj.op(SINE, vmap_method="magic")
    with pytest.raises(ValueError, match="expected a sharding rule"):
        twj.op(SINE, sharding_rule="b n")
    with pytest.raises(TypeError, match="expected IR text or a function"):
        twj.op(7)
    with pytest.raises(ValueError, match="expected vjp to give 1 gradients"):
        op = twj.op(SINE, vjp=lambda inputs, y, dy: (dy, dy))
        jax.grad(lambda v: op(v).sum())(jnp.zeros(8))
    with pytest.raises(NotImplementedError, match=r"^\[tile_program\] .* reverse mode"):
        jax.jvp(twj.op(SINE), (jnp.zeros(8),), (jnp.zeros(8),))


def test_pallas_refusals_come_through():
    def gamma(x):
        def kernel(x_ref, o_ref):
            o_ref[...] = jax.lax.digamma(x_ref[...])

        return twj.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with pytest.raises(NotImplementedError, match="`digamma`"):
        jax.jit(twj.op(gamma))(jnp.zeros(8))
