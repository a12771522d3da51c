"""From a C++ file to a sharded, differentiable JAX op: RMSNorm in user-written tile programs.

`rms_norm.cpp` in this folder is compiled into a shared library whose functions print a tile
program, as text, for given shapes. `twj.op` makes JAX ops from them:

    c++ -std=c++20 -O2 -shared -fPIC rms_norm.cpp -o librms_norm.so \
        -I PREFIX/include -L PREFIX/lib -ltilewright
    python rms_norm.py librms_norm.so
"""

import ctypes
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

import tilewright.jax as twj


def make_rms_norm(library):
    """rms_norm(x, weight) from a library: x (rows, columns) f32, weight (columns,) f32."""

    def text_of(name):
        function = getattr(library, name)
        function.argtypes = [ctypes.c_int64, ctypes.c_int64]
        function.restype = ctypes.c_char_p
        # The op passes arrays of which only shape and dtype are known: the program is made for
        # these, or for one device's shard if the arrays are sharded.
        return lambda x, *_: function(*x.shape).decode()

    forward = twj.op(text_of("rms_norm_forward"), sharding_rule="b n, n -> b n, b")
    backward = twj.op(text_of("rms_norm_backward"), sharding_rule="b n, n, b, b n -> b n")
    # The weight's gradient is a sum over rows: each device sums its own, then devices are summed.
    backward_weight = twj.op(
        text_of("rms_norm_backward_weight"),
        sharding_rule=("b n, b, b n -> n", {"reduction_factors": ("b",)}),
    )

    @jax.custom_vjp
    def rms_norm(x, weight):
        return forward(x, weight)[0]

    def save(x, weight):
        y, rstd = forward(x, weight)
        return y, (x, weight, rstd)

    def gradients(saved, dy):
        x, weight, rstd = saved
        return backward(x, weight, rstd, dy), backward_weight(x, rstd, dy)

    rms_norm.defvjp(save, gradients)
    return rms_norm


def reference(x, weight):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def main(path):
    rms_norm = make_rms_norm(ctypes.CDLL(path))
    keys = jax.random.split(jax.random.key(0), 3)
    x, dy = (jax.random.normal(key, (64, 512)) for key in keys[:2])
    weight = 1 + 0.1 * jax.random.normal(keys[2], (512,))

    def both(norm):
        return jax.jit(lambda x, w: (norm(x, w), jax.vjp(norm, x, w)[1](dy)))

    def difference(a, b):
        return max(
            float(abs(p - q).max()) for p, q in zip(*map(jax.tree.leaves, (a, b)), strict=False)
        )

    want = both(reference)(x, weight)
    print("one device, forward and gradients: off by", difference(both(rms_norm)(x, weight), want))
    assert difference(both(rms_norm)(x, weight), want) < 1e-4

    batch = jnp.stack([x, 2 * x, -x])
    mapped = jax.jit(jax.vmap(rms_norm, in_axes=(0, None)))(batch, weight)
    print("vmap: off by", difference(mapped, reference(batch, weight)))
    assert difference(mapped, reference(batch, weight)) < 1e-5

    mesh = jax.make_mesh((len(jax.devices()),), ("rows",), axis_types=(AxisType.Auto,))
    rows, whole = NamedSharding(mesh, Spec("rows", None)), NamedSharding(mesh, Spec())
    step = jax.jit(
        lambda x, w, dy: (rms_norm(x, w), jax.vjp(rms_norm, x, w)[1](dy)),
        in_shardings=(rows, whole, rows),
        out_shardings=(rows, (rows, whole)),
    )
    compiled = step.lower(x, weight, dy).compile()
    text = compiled.as_text()
    print(
        f"{len(jax.devices())} devices: {text.count(' all-reduce(')} all-reduce,",
        f"{text.count(' all-gather(')} all-gather",
    )
    assert text.count(" all-gather(") == 0
    sharded = compiled(*(jax.device_put(a, s) for a, s in ((x, rows), (weight, whole), (dy, rows))))
    print("sharded: off by", difference(sharded, want))
    assert difference(sharded, want) < 1e-4


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./librms_norm.so")
