"""tilewright.jax on a GPU against Pallas's mha (Triton) and XLA's fused norms, and on all GPUs
against one, alternating in one process.

python bench/jax_cuda.py [rounds] [mha|norms|dispatch|devices]
"""

import functools
import os
import statistics
import sys
import time

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import attention as pallas
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import tilewright.jax as twj

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
os.environ.setdefault("TILEWRIGHT_COMPACT", "0")  # full kernels, not those of first calls


def seconds(function, calls):
    """Seconds per call, for `calls` queued one after the other."""
    jax.block_until_ready(function())
    start = time.perf_counter()
    for _ in range(calls):
        result = function()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / calls


def compare(case, ours, theirs, calls=25):
    """Prints our median time and how much longer the other takes in the same rounds."""
    try:
        for function in (ours, theirs):
            seconds(function, 3)
    except Exception as error:
        print(f"{case}: {str(error)[:300]}", flush=True)
        return
    times = [], []
    for _ in range(ROUNDS):
        for kept, function in zip(times, (ours, theirs), strict=True):
            time.sleep(0.1)
            kept.append(seconds(function, calls))
    mine, other = map(statistics.median, times)
    least, most = (f(b / a for a, b in zip(*times, strict=True)) for f in (min, max))
    print(
        f"{case}: {1e6 * mine:.0f} us; x {other / mine:.2f} ({least:.2f} to {most:.2f})", flush=True
    )


def pulled_back(function, *arrays):
    """The backward pass alone, jitted."""
    out, pullback = jax.vjp(jax.jit(function), *arrays)
    gradient = jax.random.normal(jax.random.key(9), out.shape, out.dtype)
    run = jax.jit(lambda pullback, gradient: pullback(gradient))
    return lambda: run(pullback, gradient)


def compare_mha(length, dim, causal, batch=4, heads=16):
    keys = jax.random.split(jax.random.key(0), 3)
    arrays = [jax.random.normal(k, (batch, length, heads, dim), jnp.bfloat16) for k in keys]
    scale = dim**-0.5

    def ours(q, k, v):
        return twj.mha(q, k, v, None, scale, causal)

    def theirs(q, k, v):
        return pallas.mha(q, k, v, None, scale, causal)

    case = f"mha B{batch} S{length} H{heads} D{dim} bf16{' causal' if causal else ''}"
    compare(f"{case}, forward", *(functools.partial(jax.jit(f), *arrays) for f in (ours, theirs)))
    compare(f"{case}, backward", *(pulled_back(f, *arrays) for f in (ours, theirs)))


def compare_rms_norm(rows, width):
    x = jax.random.normal(jax.random.key(0), (rows, width), jnp.bfloat16)
    w = jax.random.normal(jax.random.key(1), (width,), jnp.bfloat16)

    def theirs(x, w):
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
        return (wide * scale * w.astype(jnp.float32)).astype(x.dtype)

    case = f"rms_norm {rows} x {width} bf16"
    both = (twj.rms_norm, theirs)
    compare(f"{case}, forward", *(functools.partial(jax.jit(f), x, w) for f in both), calls=100)
    compare(f"{case}, backward", *(pulled_back(f, x, w) for f in both), calls=100)


def compare_dispatch():
    """A call that does nothing, including the wait for it, beside an addition by XLA."""
    q = jnp.ones((1, 1, 16, 16), jnp.bfloat16)
    for name, f in (
        ("attention", lambda q: twj.flex_attention(q, q, q)),
        ("rms_norm", lambda q: twj.rms_norm(q)),
    ):
        compare(
            f"{name} of (1, 1, 16, 16) beside x + x",
            functools.partial(jax.jit(f), q),
            functools.partial(jax.jit(lambda x: x + x), q),
            calls=1000,
        )

    def steps(q):
        def step(q, _):
            return twj.flex_attention(q, q, q), None

        return jax.lax.scan(step, q, None, length=64)[0]

    run = jax.jit(steps)
    time_of_step = min(seconds(lambda: run(q), 10) for _ in range(5)) / 64
    print(f"a step of a scan of such attentions: {1e6 * time_of_step:.1f} us", flush=True)


def compare_devices():
    """Attention split over all GPUs along batch, then heads, against one GPU."""
    count = jax.device_count()
    if count == 1:
        return
    mesh = jax.make_mesh((count,), ("x",), axis_types=(AxisType.Auto,))
    keys = jax.random.split(jax.random.key(0), 3)
    arrays = [jax.random.normal(k, (8, 16, 4096, 128), jnp.bfloat16) for k in keys]

    def forward(q, k, v):
        return twj.flex_attention(q, k, v, causal=True)

    def total(q, k, v):
        return forward(q, k, v).astype(jnp.float32).sum()

    runs = {"forward": jax.jit(forward), "gradient": jax.jit(jax.grad(total, (0, 1, 2)))}
    for dimension, axes in (("batch", ("x",)), ("heads", (None, "x"))):
        split = [jax.device_put(a, NamedSharding(mesh, PartitionSpec(*axes))) for a in arrays]
        for direction, run in runs.items():
            case = f"flex causal B8 H16 S4096 D128 bf16 {direction}, {dimension} over {count} GPUs"
            compare(case, *(functools.partial(run, *given) for given in (split, arrays)))


GROUPS = {
    "mha": lambda: [
        compare_mha(4096, dim, causal)
        for dim, causal in ((128, False), (128, True), (64, False), (64, True))
    ],
    "norms": lambda: [compare_rms_norm(16384, 4096), compare_rms_norm(131072, 1024)],
    "dispatch": compare_dispatch,
    "devices": compare_devices,
}


if __name__ == "__main__":
    print(jax.devices()[0].device_kind, "JAX", jax.__version__)
    for name in sys.argv[2:] or GROUPS:
        GROUPS[name]()
