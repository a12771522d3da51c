"""Calls compiled ahead of time, exported and cached; errors that only values reveal."""

import concurrent.futures
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_attention import attention, close, normal

import tilewright.jax as twj
from tilewright.jax import _targets

Q, K, V = (normal(i, (1, 2, 20, 8)) for i in range(3))
SLOPES = jnp.array([0.5, 0.25])


def attend(q, slopes):
    def score(s, b, h, i, j):
        return s + slopes[h] * (j - i)

    return twj.flex_attention(q, K, V, score, causal=True)


def loss(q, slopes):
    return jnp.sin(attend(q, slopes)).sum()


def test_ahead_of_time():
    compiled = jax.jit(attend).lower(Q, SLOPES).compile()
    close(compiled(Q, SLOPES), attend(Q, SLOPES), 1)
    assert "tilewright_attention" in compiled.as_text()


def test_calls_repeat_on_other_arrays():
    """A call repeats what the first one with its shapes launched, on its own arrays."""

    def everything(q, k, v, slopes, w):
        out, lse = twj.flex_attention(
            q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), causal=True, return_lse=True
        )
        return jnp.sin(twj.rms_norm(out, w)).sum() + jnp.cos(lse).sum()

    def dense(q, k, v, slopes, w):
        out, lse, _ = attention(
            *(q, k, v),
            lambda s, b, h, i, j: s + slopes[h] * (j - i),
            lambda b, h, i, j: i >= j,
        )
        y = out * jax.lax.rsqrt((out * out).mean(-1, keepdims=True) + 1e-5) * w
        return jnp.sin(y).sum() + jnp.cos(lse).sum()

    run, want = (jax.jit(jax.grad(f, tuple(range(5)))) for f in (everything, dense))
    w = jnp.linspace(0.5, 1.5, 8)
    cases = [
        (Q, Q, Q, SLOPES, w),  # one buffer for three operands
        (Q, K, V, SLOPES, w),
        (K, V, V, -SLOPES, 2 * w),
        (Q[:, :, :1], K, V, SLOPES, w),  # decoding
        (Q[:, :, :7], K[:, :, :9], V[:, :, :9], SLOPES, w),
        (Q, K, V, SLOPES, w),
    ]
    for arrays in (*cases, *reversed(cases)):
        for have, expected in zip(run(*arrays), want(*arrays), strict=True):
            close(have, expected, 512)


def test_calls_of_one_site_at_once():
    """Threads share what a call site recorded."""
    run = jax.jit(attend)
    inputs = [(normal(i, Q.shape), SLOPES * i) for i in range(8)]
    want = [np.asarray(run(*x)) for x in inputs]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for have, expected in zip(
            pool.map(lambda x: np.asarray(run(*x)), inputs * 20), want * 20, strict=True
        ):
            np.testing.assert_array_equal(have, expected)


RUN = """
import sys
import jax, jax.export, numpy as np
import tilewright.jax
exported = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
arrays = np.load(sys.argv[2])
np.save(sys.argv[3], exported.call(arrays["q"], arrays["slopes"])[1])
"""


def test_exported_programs_run_in_another_process(tmp_path):
    pytest.importorskip("flatbuffers")  # used by jax.export
    allowed = [
        jax.export.DisabledSafetyCheck.custom_call(name)
        for name in ("tilewright_attention", "tilewright_attention_backward")
    ]
    run = jax.jit(jax.grad(loss, (0, 1)))
    exported = jax.export.export(run, disabled_checks=allowed)(Q, SLOPES)
    program, arrays, result = (str(tmp_path / n) for n in ("program", "arrays.npz", "result.npy"))
    with open(program, "wb") as file:
        file.write(exported.serialize())
    np.savez(arrays, q=Q, slopes=SLOPES)
    subprocess.run([sys.executable, "-c", RUN, program, arrays, result], check=True)
    close(jnp.asarray(np.load(result)), run(Q, SLOPES)[1], 1)


def test_persistent_cache(tmp_path):
    options = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in options}
    try:
        for name, value in options.items():
            jax.config.update(name, value)
        jax._src.compilation_cache.reset_cache()
        jax.clear_caches()
        first = jax.jit(attend)(Q, SLOPES)
        entries = sorted(p.name for p in tmp_path.iterdir() if "attend" in p.name)
        assert entries
        jax.clear_caches()
        close(jax.jit(attend)(Q, SLOPES), first, 1)
        assert sorted(p.name for p in tmp_path.iterdir() if p.name in entries) == entries
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        jax._src.compilation_cache.reset_cache()


def test_errors_that_only_values_show():
    starts = jnp.array([0, 12, 7, 20])
    with pytest.raises(
        Exception, match="INVALID_ARGUMENT: .attention. expected cu_seqlens never to"
    ):
        jax.jit(lambda c: twj.flex_attention(Q, K, V, cu_seqlens=c))(starts).block_until_ready()
    close(attend(Q, SLOPES), attend(Q, SLOPES), 1)  # the process still works


def test_forward_mode_and_second_derivatives_are_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"\[flex_attention\] .* forward mode"):
        jax.jvp(lambda q: attend(q, SLOPES), (Q,), (Q,))
    with pytest.raises(NotImplementedError, match=r"\[flex_attention\] .* once, in reverse mode"):
        jax.grad(lambda q: jax.grad(loss)(q, SLOPES).sum())(Q)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"key": K[:, :, :, :4]}, ValueError, "expected key with the query's batch and head dim"),
        ({"value": V[:, :, :5]}, ValueError, "expected value with the key's batch, heads and len"),
        ({"query": Q[0]}, ValueError, r"expected query of rank 4 but got float32\[2, 20, 8\]"),
        ({"query": Q.astype(int)}, TypeError, "expected query of float32, .* but got int32"),
        ({"key": K.astype(jnp.bfloat16)}, TypeError, "expected key of float32, the query's dtype"),
        ({"key": K[:, :1], "value": V[:, :1]}, ValueError, "without enable_gqa=True but got 2"),
        ({"query": None}, TypeError, "expected query to be an array but got None"),
        ({"query": "q"}, TypeError, "expected query to be an array but got str"),
        ({"scale": float("nan")}, ValueError, "expected a finite scale but got nan"),
        ({"dropout": 1.0}, ValueError, r"expected dropout in \[0, 1\) but got 1.0"),
        ({"window": 3}, TypeError, r"expected window to be two integers \(left, right\) but got 3"),
        ({"window": (-2, 0)}, ValueError, "expected window bounds of at least -1"),
        ({"layout": "bsd"}, ValueError, 'expected layout "bhsd" or "bshd"'),
        ({"kernel_options": {"BLOCK": 3}}, ValueError, "expected kernel_options of .* got 'BLOCK'"),
        ({"block_mask": 3}, TypeError, "expected block_mask to be a BlockMask of tilewright.jax"),
        ({"segment_ids": jnp.ones((1, 3), int)}, ValueError, "expected segment_ids of shape"),
        (
            {"kv_segment_ids": jnp.ones((1, 20), int)},
            ValueError,
            "expected segment_ids with kv_seg",
        ),
        (
            {"sinks": jnp.ones(3)},
            ValueError,
            r"expected sinks of shape \(2,\) but got float32\[3\]",
        ),
        (
            {"cu_seqlens": jnp.ones((2, 2), int)},
            ValueError,
            r"expected cu_seqlens of N \+ 1 integers",
        ),
        ({"seed": 0.5, "dropout": 0.5}, TypeError, "expected seed to be an integer scalar"),
        ({"return_aux": True}, TypeError, "expected return_aux to be an AuxRequest but got bool"),
    ],
)
def test_bad_input_names_the_argument(change, error, message):
    arguments = {"query": Q, "key": K, "value": V, **change}
    with pytest.raises(error, match=r"\[flex_attention\] .*" + message):
        twj.flex_attention(**arguments)


def test_block_masks_that_do_not_fit():
    def mask(b, h, i, j):
        return i >= j

    with pytest.raises(
        ValueError, match="a block mask of 20 queries and 20 keys but got 20 and 24"
    ):
        twj.flex_attention(Q, K, V, block_mask=twj.create_block_mask(mask, 1, 1, 20, 24))
    with pytest.raises(
        ValueError, match="heads of query, 1 and 2, or 1 of either, but got 1 and 3"
    ):
        twj.flex_attention(Q, K, V, block_mask=twj.create_block_mask(mask, 1, 3, 20, 20))
    with pytest.raises(ValueError, match="mask_mod to return a bool scalar but it returns int32"):
        twj.create_block_mask(lambda b, h, i, j: i - j, 1, 1, 4, 4)
    with pytest.raises(TypeError, match="expected Q_LEN to be an integer"):
        twj.create_block_mask(mask, 1, 1, None, 4)
    with pytest.raises(TypeError, match="expected device|expected a BlockMask"):
        _ = twj.create_block_mask(mask, 1, 1, 4, 4) & 3


def test_a_jaxlib_older_than_that_of_the_build_is_refused_by_version(monkeypatch):
    monkeypatch.setattr(_targets, "_installed_api", lambda: (0, 1))
    expected = r"built with jaxlib [\d.]+ \(XLA FFI 0\.\d+\), but jaxlib [\d.]+ \(XLA FFI 0\.1\)"
    with pytest.raises(ImportError, match=expected):
        _targets.register()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ("sys.version_info = (3, 10, 13)", "JAX 0.10.2 or newer, which needs Python 3.11 or newer"),
        ("jax.__version__, jax.__version_info__ = '0.6.2', (0, 6, 2)", "newer but this is 0.6.2"),
    ],
)
def test_a_python_or_a_jax_that_is_too_old_is_named(changes, text):
    program = f"import sys, jax\n{changes}\nimport tilewright.jax"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert text in done.stderr.splitlines()[-1]
