"""flex_attention in JAX against its definition in jnp: values, gradients, transformations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_attention import attention, close, normal, over_pairs

import tilewright.jax as twj


def inputs(shape=(2, 3, 65, 16), kv_heads=None, kv_length=None, dtype=jnp.float32, value_dim=None):
    batch, heads, length, dim = shape
    kv = (batch, kv_heads or heads, kv_length or length)
    return (
        normal(0, shape, dtype),
        normal(1, (*kv, dim), dtype),
        normal(2, (*kv, value_dim or dim), dtype),
    )


def total(out, lse):
    """A number that depends on every result except lse of -inf."""
    lse = jnp.where(jnp.isneginf(lse), 0, lse)
    return jnp.sin(out.astype(lse.dtype)).sum() + jnp.cos(lse).sum()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_plain_with_grouped_heads_and_other_lengths(dtype):
    q, k, v = inputs((1, 4, 33, 8), kv_heads=2, kv_length=50, dtype=dtype, value_dim=24)

    def ours(q, k, v):
        return twj.flex_attention(q, k, v, enable_gqa=True, return_lse=True)

    out, lse = jax.jit(ours)(q, k, v)
    want = jax.jit(attention)(q, k, v)
    close(out, want[0])
    close(lse, want[1])
    have = jax.jit(jax.grad(lambda *a: total(*ours(*a)), (0, 1, 2)))(q, k, v)
    want = jax.jit(jax.grad(lambda *a: total(*attention(*a)[:2]), (0, 1, 2)))(q, k, v)
    for a, b in zip(have, want, strict=True):
        close(a, b)


def test_a_forward_announces_the_backward_that_follows():
    # On GPUs its kernels compile meanwhile, if the forward pass's attributes determine them.
    q, k, v = inputs()
    slopes = jnp.arange(3.0)

    def text(function, *arguments):
        return jax.jit(function).lower(*arguments).as_text()

    def plain(q):
        return twj.flex_attention(q, k, v).sum()

    @jax.custom_jvp
    def own(x):
        return x

    own.defjvp(lambda primals, tangents: (own(*primals), tangents[0]))

    def with_mod(slopes, rule):
        def score(s, b, h, i, j):
            return rule(s + slopes[h] * (i - j))

        return twj.flex_attention(q, k, v, score_mod=score).sum()

    assert "gradient = false" in text(plain, q) and "gradient = true" not in text(plain, q)
    assert "gradient = true" in text(jax.grad(plain), q)
    assert "gradient = true" in text(jax.grad(lambda x: with_mod(x, jnp.sin)), slopes)
    assert "gradient = true" not in text(jax.grad(lambda x: with_mod(x, own)), slopes)


def loss(run):
    """A loss of query, key, value and two captures; `run` takes flex_attention's arguments."""

    def call(q, k, v, table, slopes, documents):
        def score(s, b, h, i, j):
            return 20 * jnp.tanh((s + table[h, i - j + 70]) / 20) + slopes[h] * (j - i)

        def mask(b, h, i, j):
            return (i >= j) & (documents[b, i] == documents[b, j])

        return total(*run(q, k, v, score, mask))

    return call


ours = loss(lambda q, k, v, s, m: twj.flex_attention(q, k, v, s, mask_mod=m, return_lse=True))
theirs = loss(lambda q, k, v, s, m: attention(q, k, v, s, m)[:2])


@functools.cache
def problem():
    documents = jnp.asarray(np.sort(np.random.default_rng(3).integers(0, 4, (2, 65)))).astype(int)
    return (*inputs(), normal(4, (3, 140)), jnp.array([0.5, 0.3, 0.1]), documents)


WHICH = (0, 1, 2, 3, 4)


@functools.cache
def wanted():
    return jax.jit(jax.value_and_grad(theirs, WHICH))(*problem())


def test_captured_arrays_have_gradients():
    value, gradients = jax.jit(jax.value_and_grad(ours, WHICH))(*problem())
    close(value, wanted()[0])
    for have, want in zip(gradients, wanted()[1], strict=True):
        close(have, want)
    eager = jax.grad(ours, WHICH)(*problem())  # the same without jit
    for have, want in zip(eager, gradients, strict=True):
        close(have, want, 1)


def test_checkpoint_and_scan():
    def layers(f, x, *rest):
        def layer(x, _):
            return x + jax.grad(f)(x, *rest) * 0.1, None

        return jax.lax.scan(layer, x, None, length=2)[0]

    have = jax.jit(functools.partial(layers, ours))(*problem())
    close(have, jax.jit(functools.partial(layers, theirs))(*problem()))
    remembered = jax.jit(jax.grad(jax.checkpoint(ours), WHICH))(*problem())
    for have, want in zip(remembered, wanted()[1], strict=True):
        close(have, want)


AXES = (0, None, None, 0, None, 0)


def many():
    q, k, v, table, slopes, documents = problem()
    queries = jnp.stack([q, q[::-1], 2 * q])
    tables = jnp.stack([table, -table, table + 1])
    return queries, k, v, tables, slopes, jnp.stack([documents, documents[::-1], documents // 2])


@pytest.mark.parametrize("gradient_first", [True, False])
def test_vmap_adds_to_the_batch(gradient_first):
    def mapped(f):
        if gradient_first:
            return jax.vmap(jax.grad(f, WHICH), AXES)
        return jax.grad(lambda *a: jax.vmap(f, AXES)(*a).sum(), WHICH)

    run = jax.jit(mapped(ours))
    assert "scan" not in str(jax.make_jaxpr(mapped(ours))(*many()))
    for have, want in zip(run(*many()), jax.jit(mapped(theirs))(*many()), strict=True):
        close(have, want)


def test_vmap_over_what_cannot_join_the_batch():
    q, k, v = inputs((1, 2, 9, 4))
    sinks = normal(3, (3, 2))
    run = jax.vmap(lambda s: twj.flex_attention(q, k, v, sinks=s))
    dense = jax.jit(lambda s, q: attention(q, k, v, sinks=s)[0])
    close(run(sinks), jnp.stack([dense(s, q) for s in sinks]))
    slope = jax.jit(jax.grad(lambda *a: dense(*a).sum(), (0, 1)))
    both = jax.vmap(jax.grad(lambda s, q: twj.flex_attention(q, k, v, sinks=s).sum(), (0, 1)))
    have = both(sinks, jnp.stack([q, 2 * q, 3 * q]))
    for i in range(3):
        want = slope(sinks[i], (i + 1) * q)
        for a, b in zip(have, want, strict=True):
            close(a[i], b)


def causal(b, h, i, j):
    return i >= j


def test_block_masks_in_and_out_of_jit():
    q, k, v, _, _, documents = problem()

    def same_document(b, h, i, j):
        return (i >= j) & (documents[b, i] == documents[b, j])

    want = jax.jit(lambda *a: attention(*a, None, same_document)[0])(q, k, v)
    mask = twj.create_block_mask(same_document, 2, None, 65, 65, BLOCK_SIZE=16)
    assert mask.shape == (2, 1, 65, 65)
    assert mask.BLOCK_SIZE == (16, 16)
    dense = twj.create_mask(same_document, 2, None, 65, 65)
    np.testing.assert_array_equal(mask.elements(), dense)
    np.testing.assert_array_equal(dense, over_pairs(same_document, 2, 1, 65, 65))
    close(twj.flex_attention(q, k, v, block_mask=mask), want)
    close(jax.jit(lambda m: twj.flex_attention(q, k, v, block_mask=m))(mask), want)
    rebuilt = jax.tree.map(lambda leaf: leaf, mask)
    assert rebuilt == mask

    @jax.jit
    def inside(documents, constant):
        def mask_mod(b, h, i, j):
            return (i >= j) & (documents[b, i] == documents[b, j])

        kept = twj.create_block_mask(mask_mod, 2, None, 65, 65)
        built = twj.create_block_mask(causal, None, None, 65, 65)
        with pytest.raises(TypeError, match="built under jit from traced"):
            kept.sparsity()
        return twj.flex_attention(q, k, v, block_mask=kept & built), kept

    out, kept = inside(documents, 0)
    close(out, want)
    close(twj.flex_attention(q, k, v, block_mask=kept), want)  # returned from jit


def test_block_mask_algebra_and_views():
    mask = twj.create_block_mask(causal, None, None, 64, 96, BLOCK_SIZE=32)
    band = twj.create_block_mask(lambda b, h, i, j: abs(i - j) <= 8, 1, 2, 64, 96, BLOCK_SIZE=32)
    i, j = np.arange(64)[:, None], np.arange(96)
    np.testing.assert_array_equal((mask & band).elements()[0, 1], (i >= j) & (abs(i - j) <= 8))
    np.testing.assert_array_equal((mask | band).elements()[0, 1], (i >= j) | (abs(i - j) <= 8))
    np.testing.assert_array_equal((~mask).elements()[0, 0], i < j)
    np.testing.assert_array_equal(mask.to_dense()[0, 0], [[1, 0, 0], [1, 1, 0]])
    assert band[0, 1].shape == (1, 1, 64, 96)
    assert "░" in str(mask)
    again = twj.BlockMask.from_kv_blocks(
        *(jnp.asarray(x) for x in (mask.kv_num_blocks, mask.kv_indices)),
        *(jnp.asarray(x) for x in (mask.full_kv_num_blocks, mask.full_kv_indices)),
        BLOCK_SIZE=32,
        mask_mod=causal,
        seq_lengths=(64, 96),
    )
    assert again == mask


def test_options():
    q, k, v = inputs((2, 2, 33, 8))
    ids = jnp.asarray(np.sort(np.random.default_rng(0).integers(0, 3, (2, 33))))
    sinks = jnp.array([0.5, -1.0])

    def mask(b, h, i, j):
        return (i - 9 <= j) & (j <= i) & (ids[b, i] == ids[b, j])

    def ours(q, k, v, sinks):
        return twj.flex_attention(
            *(q, k, v),
            **dict(scale=0.3, causal=True, window=(9, -1), segment_ids=ids, sinks=sinks),
            return_aux=twj.AuxRequest(lse=True, max_scores=True),
        )

    out, aux = jax.jit(ours)(q, k, v, sinks)
    want = jax.jit(lambda *a: attention(*a, None, mask, 0.3, sinks))(q, k, v)
    for a, b in zip((out, aux.lse, aux.max_scores), want, strict=True):
        close(a, b)
    have = jax.grad(lambda *a: total(ours(*a)[0], ours(*a)[1].lse), (0, 1, 2, 3))(q, k, v, sinks)

    def theirs(q, k, v, sinks):
        return total(*attention(q, k, v, None, mask, 0.3, sinks)[:2])

    want = jax.jit(jax.grad(theirs, (0, 1, 2, 3)))(q, k, v, sinks)
    for a, b in zip(have, want, strict=True):
        close(a, b)
    swapped = [x.swapaxes(1, 2) for x in (q, k, v)]
    close(
        twj.flex_attention(*swapped, causal=True, layout="bshd").swapaxes(1, 2),
        attention(q, k, v, None, causal)[0],
    )


def test_packed_sequences():
    q, k, v = inputs((1, 2, 30, 8))
    starts = jnp.array([0, 7, 7, 30])
    slopes = jnp.array([1.0, 2.0, 3.0])

    def score(s, b, h, i, j):
        return s + slopes[b] * i

    have = jax.jit(lambda c: twj.flex_attention(q, k, v, score, cu_seqlens=c, causal=True))(starts)
    for n, (first, last) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
        part = (x[:, :, first:last] for x in (q, k, v))
        want = attention(*part, lambda s, b, h, i, j, n=n: s + slopes[n] * i, causal)[0]
        close(have[:, :, first:last], want)


def test_dropout_is_that_of_the_library():
    import tilewright as tw

    q, k, v = inputs((1, 2, 40, 8))
    want = tw.flex_attention(*map(np.asarray, (q, k, v)), dropout=0.25, seed=7)
    run = jax.jit(lambda seed: twj.flex_attention(q, k, v, dropout=0.25, seed=seed))
    have = run(jnp.int32(7))
    if jax.default_backend() == "cpu":
        np.testing.assert_array_equal(have, want)
    else:
        close(have, jnp.asarray(want))
    np.testing.assert_array_equal(twj.flex_attention(q, k, v, dropout=0.25, seed=7), have)
    assert np.abs(np.asarray(run(jnp.int32(8))) - want).max() > 0.1


def test_rows_with_nothing_to_attend():
    q, k, v = inputs((1, 1, 20, 4))

    def mask(b, h, i, j):
        return (i >= 10) & (j > 100 - i)

    have, lse = twj.flex_attention(q, k, v, mask_mod=mask, return_lse=True)
    assert not np.asarray(have).any()
    assert np.isneginf(lse).all()
    gradients = jax.grad(lambda *a: twj.flex_attention(*a, mask_mod=mask).sum(), (0, 1, 2))(q, k, v)
    assert not any(np.asarray(g).any() for g in gradients)


def test_double_precision(x64):
    q, k, v = inputs((1, 2, 12, 4), dtype=jnp.float64)
    bias = normal(3, (12, 12), jnp.float64)

    def score(s, _, h, i, j):
        return s + bias[i, j] * jnp.sin(jnp.float64(i + h))

    def run(f):
        return jax.jit(jax.value_and_grad(lambda q: total(*f(q, k, v, score))))(q)

    have = run(lambda *a: twj.flex_attention(*a, return_lse=True))
    want = run(lambda *a: attention(*a)[:2])
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        close(a, b)


def test_keys_past_their_length_do_not_exist():
    q, k, v = inputs((3, 2, 33, 8), kv_length=50)
    lengths = jnp.array([50, 17, 0], jnp.int32)
    exists = (jnp.arange(50) < lengths[:, None])[:, None, :, None]
    bad_k, bad_v = (jnp.where(exists, x, jnp.nan) for x in (k, v))

    def ours(q, k, v, lengths):
        return twj.flex_attention(q, k, v, kv_lengths=lengths, return_lse=True)

    def plain(q, k, v, lengths):
        def mask(b, h, i, j):
            return j < lengths[b]

        return twj.flex_attention(q, k, v, mask_mod=mask, return_lse=True)

    for have, want in zip(
        jax.jit(ours)(q, bad_k, bad_v, lengths), plain(q, k, v, lengths), strict=True
    ):
        close(have, want)

    def gradients(function):
        return jax.jit(jax.grad(lambda *a: total(*function(*a)), (0, 1, 2)))

    have = gradients(ours)(q, bad_k, bad_v, lengths)
    for a, b in zip(have, gradients(plain)(q, k, v, lengths), strict=True):
        close(a, b)
    many = jnp.stack([lengths, jnp.array([1, 2, 3])])
    mapped = jax.jit(jax.vmap(ours, (None, None, None, 0)))(q, bad_k, bad_v, many[:1])
    close(mapped[0][0], ours(q, k, v, lengths)[0])
    mapped = jax.vmap(ours, (None, None, None, 0))(q, k, v, many)
    close(mapped[0][1], ours(q, k, v, many[1])[0])
    with pytest.raises(Exception, match="kv_lengths from 0 to the keys' length 50 but got 51"):
        jax.block_until_ready(ours(q, k, v, jnp.array([51, 1, 1])))
    with pytest.raises(ValueError, match="kv_lengths of shape"):
        ours(q, k, v, jnp.array([1, 1]))


def test_rows_of_large_scores_have_gradients():
    """Also in calls that repeat a recording, whatever the rows in the recorded call were."""
    x = jnp.ones((1, 1, 8, 4))

    @jax.jit
    @jax.grad
    def gradient(value, most):
        def score(s, b, h, q, kv):
            return jnp.where((kv == 2) | (kv == 5), most, s)

        return twj.flex_attention(x, x, value, score).sum()

    for most, want in ((2.0, 1), (3e38, 4), (-3e38, 0), (1.71e38, 4), (2.0, 1)):
        got = np.asarray(gradient(x, most))[0, 0, :, 0]
        np.testing.assert_allclose(got[2], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got.sum(), 8, rtol=1e-5)
