"""Attention over several devices: what is split, what is summed, what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_attention import attention, close, collectives, normal
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as Spec

import tilewright.jax as twj

pytestmark = pytest.mark.usefixtures("eight_devices")
SLOPES = jnp.array([[1.0, 0.5, 0.25, 0.125], [0.5, 1.0, 2.0, 0.25]] * 2)
DOCUMENTS = jnp.asarray(np.sort(np.random.default_rng(0).integers(0, 3, (4, 16))))


@functools.cache
def mesh():
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def put(x, *axes):
    return jax.device_put(x, NamedSharding(mesh(), Spec(*axes)))


def inputs(kv_heads=4):
    shapes = [(4, 4, 16, 8), (4, kv_heads, 16, 8), (4, kv_heads, 16, 8)]
    return [normal(i, shape) for i, shape in enumerate(shapes)]


def score(slopes):
    return lambda s, b, h, i, j: s + slopes[b, h] * (j - i)


def mask(b, h, i, j):
    return (i >= j) & (DOCUMENTS[b, i] == DOCUMENTS[b, j]) & ((h > 1) | (i < j + 6))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_batch_and_heads_are_split_without_collectives(kv_heads):
    def loss(q, k, v, ids):
        out = twj.flex_attention(q, k, v, enable_gqa=True, segment_ids=ids, causal=True)
        return jnp.sin(out).sum()

    gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
    q, k, v = inputs(kv_heads)
    heads = "y" if kv_heads > 1 else None
    placed = (put(q, "x", "y"), put(k, "x", heads), put(v, "x", heads), put(DOCUMENTS, "x"))
    compiled = gradient.lower(*placed).compile()
    # A kv head that every device shares gets its gradient from all of them.
    assert set(collectives(compiled)) == (set() if kv_heads > 1 else {"all-reduce"})
    have = compiled(*placed)
    assert have[0].sharding.spec == Spec("x", "y")
    for a, b in zip(have, gradient(q, k, v, DOCUMENTS), strict=True):
        close(a, b, 4)


def test_mods_see_global_batches_and_heads():
    """Gradients of captured arrays are summed once."""

    def loss(f):
        return lambda q, k, v, s: jnp.sin(f(q, k, v, score(s), mask)).sum()

    ours = loss(lambda q, k, v, s, m: twj.flex_attention(q, k, v, s, mask_mod=m))
    theirs = loss(lambda q, k, v, s, m: attention(q, k, v, s, m)[0])
    q, k, v = inputs()
    placed = [put(x, "x", "y") for x in (q, k, v)]
    compiled = jax.jit(jax.grad(ours, (0, 1, 2, 3))).lower(*placed, put(SLOPES)).compile()
    assert collectives(compiled) == ["all-reduce"]
    want = jax.jit(jax.grad(theirs, (0, 1, 2, 3)))(q, k, v, SLOPES)
    for a, b in zip(compiled(*placed, put(SLOPES)), want, strict=True):
        close(a, b)


def test_shard_map_sees_local_ones():
    q, k, v = inputs()
    table = normal(4, (1, 4, 16, 16))

    @functools.partial(
        jax.shard_map,
        mesh=mesh(),
        in_specs=(*[Spec("x")] * 3, Spec()),
        out_specs=Spec("x"),
    )
    def local(q, k, v, table):
        return twj.flex_attention(q, k, v, twj.scores.bias(table))

    def reference(q, k, v, table):
        return attention(q, k, v, lambda s, b, h, i, j: s + table[0, h, i, j])[0]

    def loss(f):
        return jax.jit(jax.grad(lambda *a: jnp.sin(f(*a)).sum(), (0, 3)))

    for a, b in zip(loss(local)(q, k, v, table), loss(reference)(q, k, v, table), strict=True):
        close(a, b)
    compiled = loss(local).lower(q, k, v, table).compile()
    assert collectives(compiled) == ["all-reduce"]  # for the table's gradient


def test_what_cannot_be_split():
    q, k, v = inputs()
    want = twj.flex_attention(q, k, v, causal=True)
    run = jax.jit(lambda *a: twj.flex_attention(*a, causal=True))
    with pytest.warns(UserWarning, match="query is gathered along dimension 2"):
        close(run(put(q, None, None, "x"), k, v), want, 1)


def test_the_warning_names_the_array():
    q, k, v = inputs()
    table = normal(4, (16,))
    run = jax.jit(
        lambda q, ids, table: twj.flex_attention(
            *(q, k, v, lambda s, b, h, i, j: s + table[j]),
            mask_mod=lambda b, h, i, j: ids[b, i] == ids[b, j],
        )
    )
    want = run(q, DOCUMENTS, table)
    with pytest.warns(UserWarning, match="the array `ids` that mask_mod reads is gathered along"):
        close(run(put(q, "x"), put(DOCUMENTS, None, "y"), table), want, 4)
    with pytest.warns(UserWarning, match="the array `table` that score_mod reads is gathered"):
        close(run(put(q, "x"), put(DOCUMENTS, "x"), put(table, "y")), want, 4)


def test_arrays_of_examples_are_split_with_the_batch():
    """Document ids and biases of each example stay with their example."""
    bias = normal(5, (16, 4, 16))  # (key, batch, query): the batch in the middle

    def loss(f):
        def call(q, k, v, ids, slopes, bias):
            def score(s, b, h, i, j):
                return s + slopes[h] * (j - i) + bias[j, b, i]

            def documents(b, h, i, j):
                return (ids[b, i] == ids[b, j]) & ((h > 1) | (i < j + 6)) & (i + b >= j)

            return jnp.sin(f(q, k, v, score, documents)).sum()

        return jax.jit(jax.grad(call, (0, 1, 2, 4, 5)))

    ours = loss(lambda *a: twj.flex_attention(*a[:4], mask_mod=a[4]))
    theirs = loss(lambda *a: attention(*a)[0])
    arrays = (*inputs(), DOCUMENTS, SLOPES[0], bias)
    specs = [Spec("x", "y")] * 3 + [Spec("x"), Spec(), Spec(None, "x")]
    placed = [put(x, *spec) for x, spec in zip(arrays, specs, strict=True)]
    compiled = ours.lower(*placed).compile()
    # Gradients of arrays that several devices hold are summed; nothing is gathered.
    assert set(collectives(compiled)) == {"all-reduce"}
    have, want = compiled(*placed), theirs(*arrays)
    assert have[4].sharding.is_equivalent_to(placed[5].sharding, 3)
    for a, b in zip(have, want, strict=True):
        close(jnp.asarray(np.asarray(a)), b)


def test_arrays_longer_than_the_batch_are_whole():
    q, k, v = inputs()
    ids = jnp.concatenate([DOCUMENTS, DOCUMENTS])

    def attend(q, ids):
        return twj.flex_attention(q, k, v, mask_mod=lambda b, h, i, j: ids[b, i] == ids[b, j])

    close(jax.jit(attend)(put(q, "x"), ids), attend(q, ids), 4)


def test_dropout_beside_arrays_of_examples():
    """With dropout the host counts from the first shard, and the arrays are whole."""
    q, k, v = inputs()

    def attend(q, ids):
        mod = lambda b, h, i, j: ids[b, i] == ids[b, j]  # noqa: E731
        return twj.flex_attention(q, k, v, mask_mod=mod, dropout=0.5, seed=3)

    close(jax.jit(attend)(put(q, "x"), put(DOCUMENTS)), attend(q, DOCUMENTS), 4)


def rounded(x):
    """Returns x, with a user-defined derivative."""

    @jax.custom_vjp
    def f(x):
        return x + 0.125 * jnp.round(x)

    f.defvjp(lambda x: (f(x), None), lambda _, g: (2 * g,))
    return f(x)


SEVERAL = twj.create_block_mask(mask, 4, 4, 16, 16)
COUNTING = {
    "dropout": {"dropout": 0.5, "seed": 3},
    "dropout beside mods": {"dropout": 0.5, "score_mod": score(SLOPES), "mask_mod": mask},
    "a mask of batches and heads": {"block_mask": SEVERAL},
    "a mask beside mods": {"block_mask": SEVERAL, "score_mod": score(SLOPES)},
    "a rule of its own": {"score_mod": lambda s, b, h, i, j: rounded(s) + SLOPES[b, h] * (j - i)},
}


@pytest.mark.parametrize("case", COUNTING)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_shards_count_from_the_first(case, kind):
    """Dropout, masks of several batches and heads, and derivatives are those of the whole call."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2)

    def loss(q, k, v):
        out = twj.flex_attention(q, k, v, **COUNTING[case])
        return jnp.sin(out).sum(), out

    run = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))
    q, k, v = inputs()
    placed = [jax.device_put(x, NamedSharding(mesh, Spec("x", "y"))) for x in (q, k, v)]
    have, want = run(*placed), run(q, k, v)
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        close(jnp.asarray(np.asarray(a)), b, 4)


def test_explicit_axes():
    """Meshes with axes that are part of types, jax.make_mesh's default."""
    explicit = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)

    def placed(x, *axes):
        return jax.device_put(x, NamedSharding(explicit, Spec(*axes)))

    def loss(q, k, v, slopes, weight):
        out = twj.flex_attention(q, k, v, score(slopes), mask_mod=mask)
        return jnp.sin(twj.rms_norm(out, weight)).sum()

    gradient = jax.jit(jax.grad(loss, (0, 1, 2, 3, 4)))
    arrays, weight = inputs(), normal(7, (8,))
    split = [placed(x, "x", "y") for x in arrays]
    have = gradient(*split, placed(SLOPES), placed(weight))
    assert have[0].sharding.spec == Spec("x", "y", None, None)
    for a, b in zip(have, gradient(*arrays, SLOPES, weight), strict=True):
        close(jnp.asarray(np.asarray(a)), b)
    y = twj.rms_norm(split[0], placed(weight))
    assert y.sharding.spec == Spec("x", "y", None, None)
