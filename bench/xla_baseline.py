#!/usr/bin/env python3
"""Times XLA's own operations, and those of Pallas, through JAX, for `tilewright bench --baseline xla`
and `pallas`.

Standard input and output as in torch_baseline.py.
"""

import functools
import os

from torch_baseline import serve

done = []  # results of the last run


def definition(job):
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

        return attention, shapes
    if operation == "matmul":
        return jnp.matmul, [(job["m"], job["k"]), (job["k"], job["n"])]

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
    function, shapes = definition(job)
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
