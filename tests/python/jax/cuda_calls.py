"""Checks of calls on a GPU, as functions `check_*`: test_cuda.py runs them on a GPU, and
fake_gpu.py on the stand-in for one."""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from dense_attention import attention, close, normal
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import tilewright as tw
import tilewright.jax as twj

sys.path.insert(0, str(pathlib.Path(__file__, "../../../../examples/custom_op").resolve()))

STAND_IN = None  # result of fake_gpu.install
Q, K, V = (normal(i, (1, 2, 20, 16)) for i in range(3))
SLOPES = jnp.asarray([0.5, 0.25])
DOCUMENTS = jnp.asarray(np.arange(20) // 7, jnp.int32)


def causal(b, h, i, j):
    return i >= j


def banded(b, h, i, j):
    return (i >= j) & (i < j + 9)


def alibi(slopes):
    return lambda s, b, h, i, j: s + slopes[h] * (j - i)


def check_attention_and_gradients_of_captured_arrays():
    def ours(q, k, v, slopes):
        return twj.flex_attention(q, k, v, alibi(slopes), causal=True, return_lse=True)

    def dense(q, k, v, slopes):
        return attention(q, k, v, alibi(slopes), causal)[:2]

    def loss(run):
        def call(*arrays):
            out, lse = run(*arrays)
            return jnp.sin(out).sum() + jnp.cos(lse).sum()

        return call

    for have, want in zip(jax.jit(ours)(Q, K, V, SLOPES), dense(Q, K, V, SLOPES), strict=True):
        close(have, want, 128)
    gradients = jax.jit(jax.grad(loss(ours), (0, 1, 2, 3)))(Q, K, V, SLOPES)
    for have, want in zip(
        gradients, jax.grad(loss(dense), (0, 1, 2, 3))(Q, K, V, SLOPES), strict=True
    ):
        close(have, want, 256)


def check_max_scores_where_asked_for():
    aux = twj.AuxRequest(max_scores=True)
    _, more = twj.flex_attention(Q, K, V, return_aux=aux)
    close(more.max_scores, attention(Q, K, V)[2], 128)
    assert more.lse is None


def check_masks_known_and_traced():
    mask = twj.create_block_mask(banded, 1, 1, 20, 20)
    want = attention(Q, K, V, None, banded)[0]
    known = jax.jit(lambda q: twj.flex_attention(q, K, V, block_mask=mask))
    traced = jax.jit(lambda q, mask: twj.flex_attention(q, K, V, block_mask=mask))
    close(known(Q), want, 128)
    close(traced(Q, mask), want, 128)
    other = twj.create_block_mask(causal, 1, 1, 20, 20)
    close(traced(Q, other), attention(Q, K, V, None, causal)[0], 128)
    if jax.default_backend() != "cpu":
        assert "tilewright_attention_host" not in known.lower(Q).as_text()
        assert "tilewright_attention_host" in traced.lower(Q, mask).as_text()


def check_masks_of_arrays_where_they_are():
    def document(b, h, i, j):
        return (DOCUMENTS[i] == DOCUMENTS[j]) & (i >= j)

    mask = twj.create_block_mask(document, 1, 1, 20, 20)
    ids = np.asarray(DOCUMENTS)
    dense = (ids[:, None] == ids[None, :]) & np.tri(20, dtype=bool)
    np.testing.assert_array_equal(twj.create_mask(document, 1, 1, 20, 20)[0, 0], dense)
    call = jax.jit(lambda q: twj.flex_attention(q, K, V, block_mask=mask))
    close(call(Q), attention(Q, K, V, None, document)[0], 128)


def check_seeds_known_and_traced():
    known = jax.jit(lambda q: twj.flex_attention(q, K, V, dropout=0.5, seed=-3))
    traced = jax.jit(lambda q, seed: twj.flex_attention(q, K, V, dropout=0.5, seed=seed))
    np.testing.assert_array_equal(known(Q), traced(Q, jnp.int32(-3)))
    assert np.any(np.asarray(known(Q)) != np.asarray(traced(Q, jnp.int32(4))))


def check_packed_sequences():
    starts = jnp.asarray([0, 7, 7, 20], jnp.int32)

    def same(b, h, i, j):
        return (i < 7) == (j < 7)

    want = attention(Q, K, V, None, same)[0]
    traced = jax.jit(lambda q, starts: twj.flex_attention(q, K, V, cu_seqlens=starts))
    close(traced(Q, starts), want, 128)
    known = jax.jit(lambda q: twj.flex_attention(q, K, V, cu_seqlens=starts))
    close(known(Q), want, 128)


def check_segments_and_sinks():
    ids = DOCUMENTS[None]
    sinks = jnp.asarray([0.5, -1.0])

    def loss(run):
        return lambda q, sinks: jnp.sin(run(q, sinks)).sum()

    def ours(q, sinks):
        return twj.flex_attention(q, K, V, segment_ids=ids, sinks=sinks)

    def dense(q, sinks):
        mask = lambda b, h, i, j: DOCUMENTS[i] == DOCUMENTS[j]  # noqa: E731
        return attention(q, K, V, None, mask, sinks=sinks)[0]

    close(ours(Q, sinks), dense(Q, sinks), 128)
    for have, want in zip(
        jax.grad(loss(ours), (0, 1))(Q, sinks),
        jax.grad(loss(dense), (0, 1))(Q, sinks),
        strict=True,
    ):
        close(have, want, 256)


def rms(x, w, eps=1e-5):
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def check_norms():
    x, w, b = normal(5, (6, 40)), normal(6, (40,)), normal(7, (40,))

    def layer(x, w, b):
        d = x - x.mean(-1, keepdims=True)
        return rms(d, w) + b

    for ours, plain, given in (
        (twj.rms_norm, rms, (x, w)),
        (twj.layer_norm, layer, (x, w, b)),
    ):
        close(jax.jit(ours)(*given), plain(*given), 64)
        order = tuple(range(len(given)))
        have = jax.jit(jax.grad(lambda *a, f=ours: jnp.sin(f(*a)).sum(), order))(*given)
        want = jax.grad(lambda *a, f=plain: jnp.sin(f(*a)).sum(), order)(*given)
        for a, c in zip(have, want, strict=True):
            close(a, c, 256)


def check_pallas_kernels_and_aliases():
    def kernel(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...] + pl.program_id(0)

    def call(x):
        spec = pl.BlockSpec((8,), lambda i: i)
        return twj.pallas_call(
            kernel,
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(4,),
            in_specs=[spec],
            out_specs=spec,
            input_output_aliases={0: 0},
        )(x)

    x = normal(8, (32,))
    want = 2 * np.asarray(x) + np.arange(32) // 8
    np.testing.assert_allclose(jax.jit(call)(x), want, rtol=1e-6)


def check_cuda_kernels_of_users():
    from rms_norm import make_rms_norm, reference, reference_gradients

    norm = make_rms_norm(__file__)  # on a GPU no library is needed
    x, dy, weight = normal(1, (6, 40)), normal(2, (6, 40)), 1 + normal(3, (40,))

    def step(x, weight, dy):
        y, pullback = jax.vjp(lambda x, w: norm(x, w, eps=1e-3)[0], x, weight)
        return y, *pullback(dy)

    def exact(x, weight, dy):
        return reference(x, weight, 1e-3)[0], *reference_gradients(dy, x, weight, 1e-3)

    for have, want in zip(jax.jit(step)(x, weight, dy), exact(x, weight, dy), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)
    narrow = [a.astype(jnp.bfloat16) for a in (x, weight, dy)]
    wide = [np.asarray(a, np.float64) for a in narrow]
    for have, want in zip(jax.jit(step)(*narrow), exact(*wide), strict=True):
        assert have.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(have, np.float64), want, rtol=2e-2, atol=2e-2)
    xs, dys = jnp.stack([x, 2 * x]), jnp.stack([dy, -dy])
    mapped = jax.jit(jax.vmap(step, in_axes=(0, None, 0)))(xs, weight, dys)
    for i in range(2):
        for have, want in zip(mapped, exact(xs[i], weight, dys[i]), strict=True):
            np.testing.assert_allclose(have[i], want, rtol=1e-4, atol=1e-4)
    row = tw.cuda_kernel(
        """
#include <tilewright.cuh>
__global__ void times(tw::batched<const float> x, tw::batched<const float> w, tw::batched<float> y) {
    y[threadIdx.x] = x[threadIdx.x] * w[threadIdx.x];
}""",
        "times",
        inputs=("x", "w"),
        outputs="y",
        out_shape=lambda x, w: x,
        block=lambda x, w: x.shape[0],
        vmap_method="grid",
    )
    both = jax.vmap(jax.vmap(row, in_axes=(0, None)), in_axes=(None, 0))
    np.testing.assert_array_equal(jax.jit(both)(x, dy), x[None] * dy[:, None])


def check_errors_carry_our_text():
    bad = jnp.asarray([0, 9], jnp.int32)
    run = jax.jit(lambda q, starts: twj.flex_attention(q, K, V, cu_seqlens=starts))
    try:
        jax.block_until_ready(run(Q, bad))
    except Exception as error:
        assert "expected cu_seqlens from 0 to the total length 20" in str(error)
    else:
        raise AssertionError("no error")


def check_a_loop_of_calls():
    """Like a decode loop: many calls in one program, which a GPU records in command buffers."""

    def step(q, _):
        out = twj.flex_attention(q, K, V, alibi(SLOPES), causal=True)
        return twj.rms_norm(out, jnp.ones(16)), None

    def dense(q):
        for _ in range(4):
            q = rms(attention(q, K, V, alibi(SLOPES), causal)[0], jnp.ones(16))
        return q

    def unrolled(q):
        for _ in range(4):
            q, _ = step(q, None)
        return q

    scanned = jax.jit(lambda q: jax.lax.scan(step, q, None, length=4)[0])
    for run in (jax.jit(unrolled), scanned):
        for _ in range(3):
            close(run(Q), dense(Q), 512)


def check_shards_over_devices():
    """Dropout, mods and masks of several heads are those of the whole call on every device."""
    if jax.device_count() == 1:
        return
    mesh = jax.make_mesh((2,), ("h",), axis_types=(AxisType.Auto,))

    def put(x):
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, "h")))

    mask = twj.create_block_mask(lambda b, h, i, j: i >= j + h, 1, 2, 20, 20)
    for options in (
        {"score_mod": alibi(SLOPES)},
        {"score_mod": alibi(SLOPES), "dropout": 0.5, "seed": 3},
        {"block_mask": mask},
    ):

        def loss(q, k, v, options=options):
            return jnp.sin(twj.flex_attention(q, k, v, **options)).sum()

        run = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
        have, want = run(*map(put, (Q, K, V))), run(Q, K, V)
        close(jnp.asarray(np.asarray(have[0])), want[0], 64)
        for a, b in zip(have[1], want[1], strict=True):
            close(jnp.asarray(np.asarray(a)), b, 64)


def check_every_device_has_its_own_state():
    """Kernels, copies of masks and small arrays: whole calls on each device, and back again."""
    mask = twj.create_block_mask(banded, 1, 1, 20, 20)

    def loss(q, slopes, w):
        out = twj.flex_attention(q, K, V, alibi(slopes), block_mask=mask)
        decoded = twj.flex_attention(q[:, :, :1], K, V, alibi(slopes))
        return jnp.sin(twj.rms_norm(out + decoded, w)).sum()

    def kernel(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    def double(x):
        return twj.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    run = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
    arrays = Q, SLOPES, jnp.ones(16)
    want = run(*arrays)
    for device in (*jax.devices(), *jax.devices()):
        have = run(*(jax.device_put(x, device) for x in arrays))
        assert have[0].devices() == {device}
        for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        np.testing.assert_array_equal(jax.jit(double)(jax.device_put(Q, device)), 2 * Q)


def check_recording():
    """The stand-in's command buffers: the first run is not recorded, later ones are."""
    if STAND_IN is None:
        return
    run = jax.jit(lambda q: twj.flex_attention(q, K, V, alibi(SLOPES), causal=True))
    q, w = normal(9, (6, 40)), jnp.ones(40)
    norm = jax.jit(jax.grad(lambda w: jnp.sin(twj.rms_norm(q, w)).sum()))
    want = run(Q), norm(w)
    before = STAND_IN.fake_gpu_scratch()
    STAND_IN.fake_gpu_record(1)
    try:
        for _ in range(3):
            np.testing.assert_array_equal(run(Q), want[0])
            np.testing.assert_array_equal(norm(w), want[1])
    finally:
        STAND_IN.fake_gpu_record(0)
    assert STAND_IN.fake_gpu_scratch() == before  # that memory would be reused by then


def check_memory_of_command_buffers():
    """It is freed when they are, whatever calls they have."""
    if STAND_IN is None:
        return

    def recorded(columns):
        q, w = normal(9, (6, columns)), jnp.ones(columns)
        norm = jax.jit(jax.grad(lambda w: jnp.sin(twj.rms_norm(q, w)).sum()))
        norm(w).block_until_ready()
        STAND_IN.fake_gpu_record(1)
        try:
            norm(w).block_until_ready()
        finally:
            STAND_IN.fake_gpu_record(0)
        return STAND_IN.fake_gpu_blocks()

    few = recorded(8)
    assert max(recorded(8 * i) for i in range(2, 9)) <= few + 2


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}
