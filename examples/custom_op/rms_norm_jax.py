"""The operation of rms_norm.py in JAX: jit, grad, vmap, sharding without an all-gather.

python rms_norm_jax.py librms_norm_cpu.so
"""

import os
import sys

# Makes the CPU eight devices, to show sharding on any machine; has to precede JAX's import.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as Spec

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rms_norm import make_rms_norm, reference, reference_gradients


def error(have, want):
    """The largest error of all arrays, relative to the exact ones."""
    pairs = zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True)
    return max(float(abs(jnp.asarray(a, jnp.float32) - b).max() / abs(b).max()) for a, b in pairs)


def main(library):
    op = make_rms_norm(library)
    keys = jax.random.split(jax.random.key(0), 3)
    x, dy = (jax.random.normal(key, (64, 256)) for key in keys[:2])
    weight = 1 + 0.1 * jax.random.normal(keys[2], (256,))

    def norm(x, weight):
        return op(x, weight, eps=1e-3)[0]  # without rstd, which only the backward pass needs

    def step(x, weight, dy):
        y, pullback = jax.vjp(norm, x, weight)
        return y, pullback(dy)

    def exact(x, weight, dy):
        return reference(x, weight, 1e-3)[0], reference_gradients(dy, x, weight, 1e-3)

    for dtype, bound in ((jnp.float32, 1e-5), (jnp.bfloat16, 2e-2), (jnp.float16, 3e-3)):
        given = [a.astype(dtype) for a in (x, weight, dy)]
        off = error(jax.jit(step)(*given), exact(*(a.astype(jnp.float32) for a in given)))
        print(f"{dtype.__name__}, forward and gradients: relative error {off:.1e}")
        assert off < bound

    xs, dys = jnp.stack([x, 2 * x, -x]), jnp.stack([dy, dy, dy])
    mapped = jax.jit(jax.vmap(step, in_axes=(0, None, 0)))(xs, weight, dys)
    for i in range(3):
        one = jax.tree.map(lambda a, i=i: a[i], mapped)
        assert error(one, exact(xs[i], weight, dys[i])) < 1e-5
    print("vmap: agrees")

    mesh = jax.make_mesh((len(jax.devices()),), ("rows",), axis_types=(AxisType.Auto,))
    rows, whole = NamedSharding(mesh, Spec("rows", None)), NamedSharding(mesh, Spec())
    sharded = jax.jit(step, in_shardings=(rows, whole, rows), out_shardings=(rows, (rows, whole)))
    compiled = sharded.lower(x, weight, dy).compile()
    text = compiled.as_text()
    gathers, sums = text.count(" all-gather("), text.count(" all-reduce(")
    print(f"{len(jax.devices())} devices: {gathers} all-gather, {sums} all-reduce")
    assert gathers == 0
    parts = [jax.device_put(a, s) for a, s in ((x, rows), (weight, whole), (dy, rows))]
    assert error(compiled(*parts), exact(x, weight, dy)) < 1e-5

    @jax.jit
    @jax.shard_map(
        mesh=mesh, in_specs=(Spec("rows"), Spec(), Spec("rows")), out_specs=(Spec("rows"), Spec())
    )
    def by_hand(x, weight, dy):
        y, pullback = jax.vjp(norm, x, weight)
        return y, pullback(dy)[1]  # JAX sums over devices, since the weight is replicated

    y, (_, dweight) = exact(x, weight, dy)
    assert error(by_hand(*parts), (y, dweight)) < 1e-5
    print("shard_map: agrees")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./librms_norm_cpu.so")
