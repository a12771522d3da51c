"""RMSNorm over eight devices: the batch is split, and one sum gives the weight's gradient."""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as Spec

import tilewright.jax as twj

x = jax.random.normal(jax.random.key(0), (32, 512, 512))
weight = jnp.ones((512, 512), jnp.bfloat16)


def loss(x, weight):
    return (twj.rms_norm(x, weight).astype(jnp.float32) ** 2).mean()


gradient = jax.grad(loss, (0, 1))
mesh = jax.make_mesh((len(jax.devices()),), ("batch",), axis_types=(AxisType.Auto,))
placed = (
    jax.device_put(x, NamedSharding(mesh, Spec("batch"))),
    jax.device_put(weight, NamedSharding(mesh, Spec())),
)
automatic = jax.jit(gradient)
compiled = automatic.lower(*placed).compile()
text = compiled.as_text()
print("all-gather:", text.count("all-gather("), "all-reduce:", text.count("all-reduce("))
assert "all-gather" not in text

manual = jax.jit(
    jax.shard_map(
        jax.grad(lambda x, w: loss(x, w) / len(jax.devices()), (0, 1)),
        mesh=mesh,
        in_specs=(Spec("batch"), Spec()),
        out_specs=(Spec("batch"), Spec()),
    )
)
want = automatic(x, weight)
for have in (compiled(*placed), manual(*placed)):
    for a, b in zip(have, want, strict=True):
        difference = jnp.abs(a.astype(jnp.float32) - b.astype(jnp.float32)).max()
        assert difference <= 0.01 * jnp.abs(b.astype(jnp.float32)).max()
print("gradients equal those of one device, on", len(jax.devices()), "devices")
