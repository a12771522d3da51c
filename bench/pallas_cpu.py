"""Pallas kernels on the CPU against XLA and JAX's interpreter, alternating in one process.

python bench/pallas_cpu.py [rounds]
"""

import functools
import sys
import time
import warnings

import jax
import numpy as np
from jax.experimental import pallas as pl

import tilewright.jax as twj

warnings.simplefilter("ignore")
from jax.experimental.pallas.ops.gpu import attention  # noqa: E402


def compare(case, first, *others):
    """Prints the median time of `first`, and of each other one over it."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    functions = dict([first, *others])
    times = {name: [] for name in functions}
    for function in functions.values():
        jax.block_until_ready(function())
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            times[name].append(time.perf_counter() - start)
    medians = {name: float(np.median(seconds)) for name, seconds in times.items()}
    mine = medians[first[0]]
    ratios = ", ".join(f"{name} takes {medians[name] / mine:.2f} x" for name, _ in others)
    print(f"{case}: {1e3 * mine:.1f} ms; {ratios}")


def quickstart_matmul(x, y):
    def kernel(x_ref, y_ref, z_ref):
        z_ref[...] = jax.nn.relu(x_ref[...] @ y_ref[...])

    n = x.shape[0]
    return twj.pallas_call(
        kernel,
        jax.ShapeDtypeStruct((n, n), x.dtype),
        grid=(2, 2),
        in_specs=[
            pl.BlockSpec((n // 2, n), lambda i, j: (i, 0)),
            pl.BlockSpec((n, n // 2), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((n // 2, n // 2), lambda i, j: (i, j)),
    )(x, y)


def main():
    keys = jax.random.split(jax.random.key(0), 3)
    x, y = (jax.random.normal(key, (1024, 1024)) for key in keys[:2])
    ours = jax.jit(quickstart_matmul)
    xla = jax.jit(lambda x, y: jax.nn.relu(x @ y))
    compare("matmul 1024", ("pallas_call", lambda: ours(x, y)), ("XLA", lambda: xla(x, y)))

    q, k, v = (jax.random.normal(key, (1, 1024, 8, 64)) for key in keys)
    for causal in (False, True):
        mha = functools.partial(attention.mha, segment_ids=None, sm_scale=0.125, causal=causal)
        with twj.install_pallas():
            native = jax.jit(mha).lower(q, k, v).compile()
        interpreted = jax.jit(functools.partial(mha, interpret=True))
        engine = jax.jit(
            functools.partial(twj.mha, segment_ids=None, sm_scale=0.125, causal=causal)
        )
        compare(
            f"mha S1024 H8 D64{' causal' if causal else ''}",
            ("the library's kernel, native", functools.partial(native, q, k, v)),
            ("interpreted", functools.partial(interpreted, q, k, v)),
            ("twj.mha", functools.partial(engine, q, k, v)),
        )


if __name__ == "__main__":
    main()
