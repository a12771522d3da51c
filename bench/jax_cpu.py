"""tilewright.jax on the CPU against XLA, JAX's Pallas interpreter and plain C++ calls, alternating
in one process.

python bench/jax_cpu.py [rounds]
"""

import functools
import itertools
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

import tilewright.jax as twj
from tilewright import _arrays, _core
from tilewright.jax import _ffi, _mods, _targets

warnings.simplefilter("ignore")
from jax.experimental.pallas.ops.gpu import attention  # noqa: E402

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 10


def seconds(function, calls=1):
    """Wall time and CPU time of a call, in seconds."""
    passed, worked = time.perf_counter(), time.process_time()
    for _ in range(calls):
        jax.block_until_ready(function())
    return (time.perf_counter() - passed) / calls, (time.process_time() - worked) / calls


def compare(case, *named):
    """Prints the median times of the first function, and how much longer the others take: wall time
    and, in brackets, CPU time, which other work on the machine disturbs less."""
    functions = [function for _, function in named]
    for function in functions:
        seconds(function)
    rounds = np.array([[seconds(f) for f in functions] for _ in range(ROUNDS)])
    passed, worked = 1e3 * np.median(rounds[:, 0], 0)
    ratios = np.median(rounds / rounds[:, :1], 0)
    others = [
        f"{name} takes {a:.2f} x ({b:.2f})"
        for (name, _), (a, b) in zip(named[1:], ratios[1:], strict=True)
    ]
    print(f"{case}: {passed:.1f} ms ({worked:.1f}); {', '.join(others)}", flush=True)


def tensors(*arrays):
    return [_arrays.to_tensor("bench", "array", x) for x in arrays]


def compiled(function, *arrays):
    """The compiled function, and a plain C++ call of the tile program in it, on the same arrays."""
    texts, attributes = [], _targets.attributes
    _targets.attributes = lambda given: texts.append(given["ir"]) or attributes(given)
    try:
        run = jax.jit(function).lower(*arrays).compile()
    finally:
        _targets.attributes = attributes
    program = _core.Program(texts[-1])
    shapes = [shape for _, _, shape, *_ in _ffi.program_parameters(texts[-1])]
    inputs = [np.asarray(x).reshape(s) for x, s in zip(arrays, shapes, strict=False)]
    results = [np.empty(s, inputs[0].dtype) for s in shapes[len(inputs) :]]
    given = tensors(*inputs, *results)
    return functools.partial(run, *arrays), lambda: program.run(given)


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


def compare_matmul(keys):
    x, y = (jax.random.normal(key, (1024, 1024)) for key in keys[:2])
    ours, plain = compiled(quickstart_matmul, x, y)
    xla = jax.jit(lambda x, y: jax.nn.relu(x @ y))
    compare("matmul 1024", ("pallas_call", ours), ("XLA", lambda: xla(x, y)), ("C++", plain))


def compare_mha(keys, causal):
    q, k, v = (jax.random.normal(key, (1, 1024, 8, 64)) for key in keys)
    mha = functools.partial(attention.mha, segment_ids=None, sm_scale=0.125, causal=causal)
    with twj.install_pallas():
        native, plain = compiled(lambda q, k, v: mha(q, k, v), q, k, v)
    interpreted = jax.jit(functools.partial(mha, interpret=True))
    engine = jax.jit(functools.partial(twj.mha, segment_ids=None, sm_scale=0.125, causal=causal))
    compare(
        f"mha S1024 H8 D64{' causal' if causal else ''}",
        ("the library's kernel, native", native),
        ("interpreted", functools.partial(interpreted, q, k, v)),
        ("C++", plain),
        ("twj.mha", functools.partial(engine, q, k, v)),
    )


def alibi(s, b, h, i, j):
    return s + (j - i) * 0.0625


def compare_flex(keys, name, causal, score_mod):
    q, k, v = (jax.random.normal(key, (1, 8, 1024, 64)) for key in keys)
    run = jax.jit(lambda q, k, v: twj.flex_attention(q, k, v, score_mod, causal=causal))
    given = tensors(*(np.asarray(x) for x in (q, k, v)))
    options = _core.AttentionOptions()
    options.causal = causal
    if score_mod is not None:
        sizes = _mods.Sizes(1, 8, 1024, 1024)
        traced = _mods.trace("bench", "score_mod", score_mod, False, sizes)
        options.score_mod = _core.Mod.from_ir(traced.text, [])
    compare(
        f"flex_attention S1024 H8 D64 {name}",
        ("JAX", lambda: run(q, k, v)),
        ("C++", lambda: _core.attention(*given, options=options) and None),
    )


def compare_dispatch():
    q, w = jnp.ones((1, 1, 16, 16)), jnp.ones(16)

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + x_ref[...]

    cases = {
        "x + x": lambda q: q + q,
        "attention": lambda q: twj.flex_attention(q, q, q),
        "attention, causal": lambda q: twj.flex_attention(q, q, q, causal=True),
        "attention, score mod": lambda q: twj.flex_attention(q, q, q, alibi),
        "rms_norm": lambda q: twj.rms_norm(q, w),
        "pallas_call": lambda q: twj.pallas_call(kernel, jax.ShapeDtypeStruct(q.shape, q.dtype))(q),
    }
    functions = [functools.partial(jax.jit(f), q) for f in cases.values()]
    for function in functions:
        seconds(function)
    rounds = [[seconds(f, 60)[0] for f in functions] for _ in range(15 * ROUNDS)]
    plain, *others = (1e6 * min(times) for times in zip(*rounds, strict=True))
    texts = [f"{name} {t - plain:.1f}" for name, t in zip([*cases][1:], others, strict=True)]
    print(
        f"a jitted call of (1, 1, 16, 16), least of the rounds, us more than x + x ({plain:.1f}): "
        + ", ".join(texts),
        flush=True,
    )


def time_tracing():
    q, table = jnp.ones((1, 8, 1024, 64)), jnp.ones((8, 2048))
    numbers = itertools.count()

    def trace():
        n = next(numbers)

        def score(s, b, h, i, j):
            return 20 * jnp.tanh((s + table[h, i - j + 1024]) / 20) + n

        return seconds(
            lambda: jax.make_jaxpr(lambda q: twj.flex_attention(q, q, q, score))(q) and 0
        )

    trace()
    passed, worked = 1e3 * np.median([trace() for _ in range(ROUNDS)], 0)
    print(f"tracing flex_attention with a new mod: {passed:.1f} ms ({worked:.1f})", flush=True)


def main():
    keys = jax.random.split(jax.random.key(0), 3)
    compare_matmul(keys)
    for causal in (False, True):
        compare_mha(keys, causal)
    compare_flex(keys, "plain", False, None)
    compare_flex(keys, "causal", True, None)
    compare_flex(keys, "score mod", False, alibi)
    compare_dispatch()
    time_tracing()


if __name__ == "__main__":
    main()
