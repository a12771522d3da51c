#!/usr/bin/env python3
"""Times XLA's own operations, and kernels of Pallas, through JAX, for `tilewright bench --baseline`
`xla`, `pallas` (attention that Pallas compiles by Triton) and `pallas-mgpu` (the kernels for Hopper
that JAX ships, which Pallas compiles by Mosaic GPU).

Standard input and output as in torch_baseline.py.
"""

import dataclasses
import functools
import itertools
import os
import time

from torch_baseline import serve

done = []  # results of the last run


@functools.cache
def fastest(kernel, configs, shapes, dtype):
    """The configuration of the fastest call of kernel(*inputs, config=...). Inputs of these shapes
    are made for the measurement; configurations that need more shared memory than there is are
    skipped."""
    import jax

    inputs = [jax.random.uniform(jax.random.key(1), shape).astype(dtype) for shape in shapes]
    best = None
    for config in configs:
        call = jax.jit(functools.partial(kernel, config=config))
        try:
            jax.block_until_ready(call(*inputs))
        except ValueError as error:
            if "exceeds available shared memory" in str(error):
                continue
            raise
        start = time.perf_counter()
        jax.block_until_ready([call(*inputs) for _ in range(4)])
        seconds = time.perf_counter() - start
        if best is None or seconds < best[0]:
            best = seconds, config
    if best is None:
        raise ValueError("no configuration fits the shared memory of this GPU")
    return best[1]


def mosaic_matmul(shapes, dtype):
    """JAX's product for Hopper, as its own benchmark tunes it."""
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as mosaic

    base = mosaic.TuningConfig(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4)
    configs = tuple(
        dataclasses.replace(base, grid_minor_dim=minor, grid_tile_width=width, wg_dimension=split)
        for minor, width, split in itertools.product(
            mosaic.MatmulDimension, (4, 8, 16), mosaic.MatmulDimension
        )
    )

    def matmul(x, y, config=None):
        return mosaic.matmul(x, y, None, config)

    return functools.partial(matmul, config=fastest(matmul, configs, shapes, dtype))


def mosaic_attention(shapes, dtype, causal):
    """JAX's attention for Hopper (after FlashAttention-3) of f16, as its own benchmark tunes it. Its
    backward pass has no causal mask."""
    from jax.experimental.pallas.ops.gpu import attention_mgpu as mosaic

    gradients = {"block_q_dkv": 64, "block_kv_dkv": 64, "block_q_dq": 64, "block_kv_dq": 64}
    configs = tuple(
        mosaic.TuningConfig(64, block, 2, causal=causal, **({} if causal else gradients))
        for block in (256, 128, 64)
    )

    def attention(q, k, v, config=None):
        return mosaic.attention(q, k, v, config)

    return functools.partial(attention, config=fastest(attention, configs, shapes, dtype))


def definition(job, dtype):
    """The operation as jnp states it, and the shapes of its inputs."""
    import jax
    import jax.numpy as jnp

    operation = job["operation"]
    if operation == "attention":
        b, dim = job["batch"], job["head_dim"]
        shapes = [(b, job["seq_len"], job["heads"], dim)]
        shapes += 2 * [(b, job["kv_len"], job["kv_heads"], dim)]

        def attention(q, k, v):
            return jax.nn.dot_product_attention(
                q, k, v, is_causal=job["causal"], implementation="xla"
            )

        if job.get("backend") == "pallas":
            from jax.experimental.pallas.ops.gpu import attention as pallas

            def attention(q, k, v):
                return pallas.mha(q, k, v, None, dim**-0.5, job["causal"])

        if job.get("backend") == "pallas-mgpu":
            attention = mosaic_attention(tuple(shapes), dtype, job["causal"])
        return attention, shapes
    if operation == "matmul":
        shapes = [(job["m"], job["k"]), (job["k"], job["n"])]
        mosaic = job.get("backend") == "pallas-mgpu"
        return mosaic_matmul(tuple(shapes), dtype) if mosaic else jnp.matmul, shapes

    def rms_norm(x, weight):
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
        return (wide * scale * weight).astype(x.dtype)

    def layer_norm(x, weight):
        wide = x.astype(jnp.float32)
        wide = wide - jnp.mean(wide, -1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
        return (wide * scale * weight).astype(x.dtype)

    norms = {"rms_norm": rms_norm, "layer_norm": layer_norm}
    if operation in norms:
        return norms[operation], [(job["rows"], job["n"]), (job["n"],)]
    if operation == "softmax":
        return jax.nn.softmax, [(job["rows"], job["n"])]
    raise ValueError(f"XLA has no operation {operation!r}")


def prepare(job):
    """Returns a function that executes the operation once."""
    if job.get("device", "cpu") == "cpu":
        # XLA has no option for its number of threads; it counts the processors it may use.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["threads"]])
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp

    dtype = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}[job["dtype"]]
    function, shapes = definition(job, dtype)
    keys = jax.random.split(jax.random.key(0), len(shapes) + 1)
    # In [-1, 1), as in `tilewright bench`: power depends on it.
    uniform = functools.partial(jax.random.uniform, minval=-1, maxval=1)
    inputs = [
        uniform(key, shape).astype(dtype) for key, shape in zip(keys[1:], shapes, strict=True)
    ]
    if job["direction"] == "backward":
        out, pull = jax.vjp(function, *inputs)
        inputs = [pull, uniform(keys[0], out.shape).astype(out.dtype)]

        def function(pull, gradient):
            return pull(gradient)

    function = jax.jit(function)

    def run():
        done[:] = [function(*inputs)]

    return run


def wait_of(job):
    import jax

    return lambda: jax.block_until_ready(done)


if __name__ == "__main__":
    serve(prepare, wait_of, done.clear)
