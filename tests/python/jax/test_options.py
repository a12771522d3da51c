"""flex_attention and mha with options, and with sizes and scales that are traced or symbolic."""

import pathlib
import pickle
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_attention import attention, close, normal

import tilewright as tw
import tilewright.jax as twj
from tilewright import _attention

Q, K, V = (normal(i, (2, 2, 20, 8)) for i in range(3))
SLOPES = jnp.array([0.5, 0.25])
IDS = jnp.asarray(np.sort(np.random.default_rng(0).integers(0, 3, (2, 20))), jnp.int32)


def score(s, b, h, i, j):
    return s + SLOPES[h] * (j - i)


def mask(b, h, i, j):
    return (i >= j) & (IDS[b, i] == IDS[b, j])


# ---- kernel_options.


def test_blocks_reach_the_call():
    def text(**options):
        run = jax.jit(lambda q: twj.flex_attention(q, K, V, kernel_options=options))
        return run.lower(Q).as_text()

    assert 'forward_blocks = "32 16 0 0"' in text(BLOCK_M=32, BLOCK_N=16)
    assert 'forward_blocks = "0 0 0 0"' in text(bwd_BLOCK_M1=32)
    assert 'forward_blocks = "0 0 4 3"' in text(num_warps=4, num_stages=3)
    assert 'forward_blocks = "0 0 8 0"' in text(num_warps=4, fwd_num_warps=8, bwd_num_stages=3)
    gradient = jax.jit(
        jax.grad(
            lambda q: twj.flex_attention(
                q, K, V, kernel_options={"BLOCK_M1": 32, "bwd_num_warps": 2}
            ).sum()
        )
    )
    assert 'backward_blocks = "32 0 2 0"' in gradient.lower(Q).as_text()
    want = twj.flex_attention(Q, K, V)
    for options in ({"BLOCK_M": 16, "BLOCK_N": 8}, {"autotune": True}, {"engine": "tiles"}):
        close(twj.flex_attention(Q, K, V, kernel_options=options), want, 8)


def test_engines_are_checked():
    with pytest.raises(ValueError, match='expected engine "tiles" or "sm90".* but got \'foo\''):
        twj.flex_attention(Q, K, V, kernel_options={"engine": "foo"})


def test_precision_reaches_both_passes():
    def loss(q, k=K, v=V):
        return twj.flex_attention(q, k, v, kernel_options={"precision": "bf16x3"}).sum()

    assert jax.jit(jax.grad(loss)).lower(Q).as_text().count('precision = "bf16x3"') == 2
    np.testing.assert_array_equal(loss(Q), twj.flex_attention(Q, K, V).sum())
    with pytest.raises(Exception, match="with query of bf16 but got `bf16x3`"):
        jax.block_until_ready(loss(*(x.astype(jnp.bfloat16) for x in (Q, K, V))))
    with pytest.raises(ValueError, match='expected precision "ieee", "tf32" or "bf16x3"'):
        twj.flex_attention(Q, K, V, kernel_options={"precision": "fast"})


HINTS = {
    **dict.fromkeys(
        ("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2", "num_warps"), 16
    ),
    **dict.fromkeys(("num_stages", "kpack", "matrix_instr_nonkdim", "waves_per_eu"), 2),
    **dict.fromkeys(("SPLIT_KV", "PARTITION_SIZE"), 64),
    **dict.fromkeys(("PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS"), True),
    **dict.fromkeys(("WRITE_DQ", "USE_TMA", "FORCE_USE_FLEX_ATTENTION", "SKIP_MASK_SCORE"), True),
    "BACKEND": "TRITON",
    "engine": "tiles",
    "precision": "ieee",
    "autotune": True,
}


@pytest.mark.parametrize("name", HINTS)
@pytest.mark.parametrize("prefix", ["", "fwd_", "bwd_"])
def test_no_hint_changes_a_result_and_none_warns(name, prefix):
    def loss(options):
        def run(q):
            return jnp.sin(twj.flex_attention(q, K, V, score, mask_mod=mask, **options)).sum()

        return jax.value_and_grad(run)(Q)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, grad = loss({"kernel_options": {prefix + name: HINTS[name]}})
    want_out, want_grad = loss({})
    np.testing.assert_allclose(out, want_out, rtol=1e-6)
    close(grad, want_grad, 8)


def test_the_page_has_a_row_for_each_hint():
    page = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "attention.md"
    rows = {
        name
        for line in page.read_text().splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert sorted(HINTS) == _attention._OPTIONS
    assert rows >= set(HINTS), sorted(set(HINTS) - rows)


def test_hints_of_mha_reach_the_call():
    q, k, v = (x.swapaxes(1, 2) for x in (Q, K, V))

    def text(**options):
        return jax.jit(lambda q: twj.mha(q, k, v, None, **options)).lower(q).as_text()

    assert 'forward_blocks = "32 16 0 0"' in text(block_q=32, block_k=16)
    assert 'forward_blocks = "0 0 4 3"' in text(num_warps=4, num_stages=3)
    assert 'forward_blocks = "0 0 0 0"' in text(num_warps=None, num_stages=2, grid=None)
    assert 'precision = "tf32"' in text(precision="tf32")
    with pytest.raises(ValueError, match='expected precision "ieee", "tf32" or "bf16x3"'):
        text(precision="fast")
    with pytest.raises(ValueError, match=r"expected grid=None, since .* but got \(2, 2\)"):
        text(grid=(2, 2))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_the_reference_of_mha_keeps_the_dtype(dtype):
    q, k, v = (x.swapaxes(1, 2).astype(dtype) for x in (Q, K, V))
    assert twj.mha_reference(q, k, v, None).dtype == dtype
    close(twj.mha_reference(q, k, v, IDS), twj.mha(q, k, v, IDS), 8)
    gradient = jax.grad(lambda q: twj.mha(q, k, v, None, backward_pass_impl="xla").sum())(q)
    assert gradient.dtype == dtype


SYNONYMS = {"is_causal": "causal=True", "sm_scale": "scale", "bias": "scores.bias", "mask": "mask_"}


@pytest.mark.parametrize("name", SYNONYMS)
def test_names_of_other_libraries(name):
    with pytest.raises(TypeError, match=f"expected no argument `{name}`; use .*{SYNONYMS[name]}"):
        twj.flex_attention(Q, K, V, **{name: 1})
    with pytest.raises(TypeError, match="expected no argument `softmax_scale`; use sm_scale"):
        twj.mha(Q, K, V, None, softmax_scale=1)


# ---- scale.


@pytest.mark.parametrize("mod", [None, score, twj.scores.softcap(2), tw.scores.softcap(2)])
def test_a_traced_scale_has_a_gradient(mod):
    def loss(f):
        return jax.jit(jax.grad(lambda q, c: jnp.sin(f(q, c)).sum(), (0, 1)))

    plain = (lambda s, *_: 2 * jnp.tanh(s / 2)) if mod not in (None, score) else mod
    ours = loss(lambda q, c: twj.flex_attention(q, K, V, mod, scale=c, mask_mod=mask))
    theirs = loss(lambda q, c: attention(q, K, V, plain, mask, scale=c)[0])
    for a, b in zip(ours(Q, 0.3), theirs(Q, 0.3), strict=True):
        close(a, b)
    close(
        twj.flex_attention(Q, K, V, scale=jnp.float32(0.3)),
        twj.flex_attention(Q, K, V, scale=0.3),
        1,
    )
    with pytest.raises(TypeError, match=r"expected scale to be a number but got float32\[2\]"):
        jax.jit(lambda c: twj.flex_attention(Q, K, V, scale=c))(SLOPES)


# ---- Block masks.


def test_block_masks_are_static_arguments():
    traces = []

    @jax.jit
    def as_argument(q, mask):
        return twj.flex_attention(q, K, V, block_mask=mask)

    def attend(q, mask):
        traces.append(1)
        return twj.flex_attention(q, K, V, block_mask=mask)

    static = jax.jit(attend, static_argnums=1)
    masks = [twj.create_block_mask(twj.masks.causal(), None, None, 20, 20) for _ in range(2)]
    other = twj.create_block_mask(twj.masks.sliding_window(3), None, None, 20, 20)
    for block_mask in (*masks, other):
        close(static(Q, block_mask), as_argument(Q, block_mask), 1)
    assert len(traces) == 2
    assert masks[0] == masks[1] and hash(masks[0]) == hash(masks[1]) and masks[0] != other
    again = pickle.loads(pickle.dumps(other))
    assert again == other and hash(again) == hash(other)


def test_masks_say_which_sizes_they_need():
    for create in (twj.create_block_mask, twj.create_mask):
        with pytest.raises(ValueError, match=r"expected B, since the mod depends on the batch"):
            create(mask, None, 2, 20, 20)
        with pytest.raises(ValueError, match=r"expected H, since the mod depends on the head"):
            create(lambda b, h, i, j: i >= j * h, 2, None, 20, 20)
        create(mask, 2, None, 20, 20)

    @jax.jit
    def traced(ids):
        kept = twj.create_block_mask(lambda b, h, i, j: ids[b, i] == 0, None, None, 20, 20)
        return twj.flex_attention(Q, K, V, block_mask=kept)

    with pytest.raises(ValueError, match="expected B"):
        traced(IDS)
    with pytest.raises(ValueError, match="expected a block mask of 2 batches"):
        twj.flex_attention(Q, K, V, block_mask=twj.create_block_mask(mask, 1, 1, 20, 20))


def test_devices_of_masks():
    causal = twj.masks.causal()
    kind = "cpu" if jax.default_backend() == "cpu" else "cuda"
    for create in (twj.create_block_mask, twj.create_mask):
        create(causal, None, None, 8, 8, device=kind)
        with pytest.raises(ValueError, match="expected device None"):
            create(causal, None, None, 8, 8, device="tpu")
        if kind == "cpu":
            with pytest.raises(ValueError, match=r"a device that JAX has \(cpu\) but got 'cuda'"):
                create(causal, None, None, 8, 8, device="cuda")
    assert twj.create_mask(causal, None, None, 8, 8, device=kind).sum() == 36


# ---- Export with symbolic shapes.

ALLOWED = [
    jax.export.DisabledSafetyCheck.custom_call(name)
    for name in (
        "tilewright_attention",
        "tilewright_attention_backward",
        "tilewright_attention_host",
    )
]


def exported(function, *arrays, shapes):
    specs = jax.export.symbolic_args_specs(arrays, shapes)
    return jax.export.export(jax.jit(function), disabled_checks=ALLOWED)(*specs)


@pytest.mark.parametrize("kind", ["score and mask", "library", "arrays", "block mask", "scale"])
def test_symbolic_shapes(kind):
    block_mask = twj.create_block_mask(twj.masks.causal(), None, None, 20, 20)

    def attend(q, k, ids, slopes):
        def score(s, b, h, i, j):
            return s + slopes[h] * (j - i)

        def documents(b, h, i, j):
            return (i >= j) & (ids[b, i] == ids[b, j])

        options = {
            "score and mask": dict(score_mod=score, mask_mod=lambda b, h, i, j: i >= j - h),
            "library": dict(score_mod=twj.scores.alibi(slopes), mask_mod=twj.masks.causal()),
            "arrays": dict(score_mod=score, mask_mod=documents),
            "block mask": dict(score_mod=score, block_mask=block_mask),
            "scale": dict(scale=slopes[0], mask_mod=documents),
        }
        return twj.flex_attention(q, k, k, **options[kind])

    def loss(*arrays):
        return jnp.sin(attend(*arrays)).sum()

    length = "20" if kind == "block mask" else "n"
    shapes = [f"b, 2, {length}, 8", f"b, 2, {length}, 8", f"b, {length}", "2"]
    for function in (attend, jax.grad(loss, (0, 1, 3))):
        program = exported(function, Q, K, IDS, SLOPES, shapes=shapes)
        for part in (slice(None), slice(1)):
            arrays = (Q[part], K[part], IDS[part], SLOPES)
            have, want = program.call(*arrays), jax.jit(function)(*arrays)
            for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
                close(a, b, 4)


# ---- Copies and debugging.


def test_library_mods_pickle_and_evaluate():
    mods = [twj.masks.document(IDS) & twj.masks.causal(), ~twj.masks.sliding_window(2)]
    for mod in (*mods, twj.scores.alibi(SLOPES)):
        again = pickle.loads(pickle.dumps(mod))
        key = "mask_mod" if mod.is_mask else "score_mod"
        outs = [twj.flex_attention(Q, K, V, **{key: m}) for m in (mod, again)]
        np.testing.assert_array_equal(*outs)
        assert repr(again) == repr(mod)
    assert bool(twj.masks.causal()(0, 0, 2, 1)) and not bool(twj.masks.causal()(0, 0, 1, 2))
    assert float(twj.scores.alibi(SLOPES)(1.0, 0, 1, 0, 4)) == 2.0


def test_create_scores():
    have = twj.create_scores(score, 1, 2, 3, 4)
    h, i, j = np.ogrid[:2, :3, :4]
    close(have, jnp.asarray((SLOPES[h] * (j - i))[None], jnp.float32), 2)
    have = twj.create_scores(twj.scores.softcap(2), None, None, 3, 4, np.full((3, 4), 1.5))
    np.testing.assert_allclose(have, 2 * np.tanh(0.75), rtol=1e-6)


def test_notebooks_show_masks():
    mask = twj.create_block_mask(twj.masks.causal(), None, None, 64, 64)
    assert mask._repr_svg_() == mask.svg() and mask.svg().startswith("<svg")
    assert "BlockMask(shape=(1, 1, 64, 64)" in mask._repr_html_() and "<svg" in mask._repr_html_()
