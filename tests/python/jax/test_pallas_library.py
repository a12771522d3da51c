"""The GPU kernels that come with JAX, unmodified, against their references."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilewright.jax as twj

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    gpu = pytest.importorskip("jax.experimental.pallas.ops.gpu")
    from jax.experimental.pallas.ops.gpu import (
        attention,
        decode_attention,
        layer_norm,
        paged_attention,
        rms_norm,
        softmax,
    )

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def installed():
    with twj.install_pallas(cuda=jax.default_backend() == "gpu"):
        yield


def normal(seed, *extents, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), extents, jnp.float32).astype(dtype)


def near(have, want, tolerance):
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        scale = max(1.0, float(np.abs(b).max(initial=0)))
        assert np.abs(a - b).max(initial=0) <= tolerance * scale


@pytest.mark.parametrize(
    ("batch", "length", "heads", "dim", "causal", "segments"),
    [(1, 128, 2, 32, False, False), (2, 128, 1, 64, True, False), (1, 192, 2, 72, True, True)],
)
def test_mha(batch, length, heads, dim, causal, segments):
    q, k, v, dout = (normal(i, batch, length, heads, dim) for i in range(4))
    ids = jnp.arange(length)[None].repeat(batch, 0) // 50 if segments else None
    sizes = attention.BlockSizes(64, 64, 32, 32, 32, 32)

    def ours(q, k, v):
        return attention.mha(q, k, v, ids, sm_scale=0.2, causal=causal, block_sizes=sizes)

    def reference(q, k, v):
        return attention.mha_reference(q, k, v, ids, sm_scale=0.2, causal=causal)

    have, pullback = jax.vjp(ours, q, k, v)
    want, reference_pullback = jax.vjp(reference, q, k, v)
    near(have, want, 1e-5)
    near(pullback(dout), reference_pullback(dout), 2e-5)


def test_norms():
    x, weight, bias = normal(0, 3, 8, 150), normal(1, 150), normal(2, 150)
    for module, name in ((rms_norm, "rms_norm"), (layer_norm, "layer_norm")):
        ours, reference = getattr(module, name), getattr(module, f"{name}_reference")
        near(ours(x, weight, bias), reference(x, weight, bias), 1e-5)
        have = jax.grad(lambda *a, f=ours: jnp.sin(f(*a)).sum(), (0, 1, 2))(x, weight, bias)
        want = jax.grad(lambda *a, f=reference: jnp.sin(f(*a)).sum(), (0, 1, 2))(x, weight, bias)
        near(have, want, 1e-5)


def test_softmax():
    for dtype, tolerance in ((jnp.float32, 1e-6), (jnp.bfloat16, 2**-7)):
        x = normal(0, 4, 5, 200, dtype=dtype)
        near(softmax.softmax(x), jax.nn.softmax(x.astype(jnp.float32)), tolerance)


def test_decode_attention():
    q, k, v = normal(0, 2, 8, 32), normal(1, 2, 256, 32), normal(2, 2, 256, 32)
    near(decode_attention.mqa(q, k, v, k_splits=2), decode_attention.mqa_reference(q, k, v), 1e-5)
    k, v = normal(1, 2, 256, 2, 32), normal(2, 2, 256, 2, 32)
    bounds = {
        "start_idx": jnp.array([3, 100], jnp.int32),
        "kv_seq_len": jnp.array([200, 250], jnp.int32),
    }
    have = decode_attention.gqa(q, k, v, k_splits=4, **bounds)
    near(have, decode_attention.gqa_reference(q, k, v, **bounds), 1e-5)


def test_paged_attention():
    pages, size, heads, dim = 16, 8, 2, 32
    q = normal(0, 2, 32, dim)
    k, v = normal(1, heads, pages, size, dim), normal(2, heads, pages, size, dim)
    tables = jnp.stack([jnp.arange(8), 15 - jnp.arange(8)]).astype(jnp.int32)
    lengths = jnp.array([60, 33], jnp.int32)
    have = paged_attention.paged_attention(
        q, k, v, tables, lengths, block_h=16, pages_per_compute_block=2, k_splits=4
    )
    k, v = (x[:, tables].transpose(1, 2, 3, 0, 4).reshape(2, -1, heads, dim) for x in (k, v))
    want = paged_attention.paged_attention_reference(q, k, v, lengths)
    near(have, want, 1e-5)
