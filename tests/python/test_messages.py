"""Error texts that name what to write instead, reprs, signatures, and calls outside of mods."""

import copy
import inspect
import math
import pickle

import numpy as np
import pytest

import tilewright as tw

Q = np.random.default_rng(0).standard_normal((2, 2, 8, 4)).astype(np.float32)
SLOPES = np.array([0.5, 0.25], np.float32)


def attend(**options):
    return tw.flex_attention(Q, Q, Q, **options)


# ---- Python's own operators on traced values.


@pytest.mark.parametrize(
    "mod",
    [
        lambda b, h, q, kv: q >= kv and q < 5,
        lambda b, h, q, kv: q >= kv or q < 5,
        lambda b, h, q, kv: not q >= kv,
        lambda b, h, q, kv: 0 <= q - kv < 5,
        lambda b, h, q, kv: min(q, kv) > 2,
        lambda b, h, q, kv: max(q, kv) > 2,
        lambda b, h, q, kv: q in (1, 2),
        lambda b, h, q, kv: kv < 3 if q > kv else kv > 3,
    ],
)
def test_truth_values_name_the_operators(mod):
    with pytest.raises(TypeError) as error:
        attend(mask_mod=mod)
    names = ("&, | and ~", "tw.minimum", "tw.maximum", "tw.where", "(a < b) & (b < c)", "`a in (1,")
    for name in names:
        assert name in str(error.value)


def test_a_mask_for_a_score_names_no_cpp():
    with pytest.raises(ValueError, match=r"choose scores with where\(") as error:
        attend(score_mod=lambda s, b, h, q, kv: q > kv)
    assert "::" not in str(error.value)


# ---- Other front ends.


def test_mods_of_jax_are_named():
    twj = pytest.importorskip("tilewright.jax")
    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(TypeError, match=r"causal> of tilewright\.jax: use tilewright\.masks"):
        attend(mask_mod=twj.masks.causal())
    with pytest.raises(TypeError, match=r"one of jax: mods written in it go to tilewright\.jax"):
        attend(score_mod=lambda s, b, h, q, kv: jnp.where(q >= kv, s, 0.0))
    with pytest.raises(TypeError, match=r"expected block_mask to be a BlockMask of tilewright but"):
        attend(block_mask=twj.create_block_mask(twj.masks.causal(), None, None, 8, 8))


SYNONYMS = {
    "is_causal": "use causal=True",
    "sm_scale": "use scale",
    "softmax_scale": "use scale",
    "mask": "use mask_mod",
    "attn_mask": "use mask_mod",
    "bias": r"use score_mod=scores\.bias\(table\)",
    "dropout_p": "use dropout",
    "window_size": r"use window=\(left, right\)",
    "colour": "of query, key, value",
}


@pytest.mark.parametrize("name", SYNONYMS)
def test_names_of_other_libraries(name):
    for call in (tw.flex_attention, tw.flex_attention_vjp):
        with pytest.raises(TypeError, match=f"expected no argument `{name}`.*{SYNONYMS[name]}"):
            call(Q, Q, Q, **{name: 1})
    with pytest.raises(TypeError, match="use eps"):
        tw.rms_norm(Q, epsilon=1e-5)


def test_reductions_of_two_values_name_the_functions():
    c = tw.capture(SLOPES)
    for call in (
        lambda s, b, h, q, kv: tw.min(s, 2.0),
        lambda s, b, h, q, kv: tw.max(q, kv),
        lambda s, b, h, q, kv: tw.min(c[0], np.float32(1)),
    ):
        with pytest.raises(TypeError, match=r"of two values use tw\.minimum, tw\.maximum"):
            attend(score_mod=call)
    for call in (lambda: tw.min(1, 2), lambda: tw.max(1.5, 2.5)):
        with pytest.raises(TypeError, match=r"of two values use tw\.minimum, tw\.maximum"):
            call()
    assert tw.min(SLOPES) == 0.25


def test_python_s_own_functions_of_scalars():
    for mod, same in (
        (lambda s, b, h, q, kv: round(s), lambda s, b, h, q, kv: tw.round(s)),
        (lambda s, b, h, q, kv: math.floor(s), lambda s, b, h, q, kv: tw.floor(s)),
        (lambda s, b, h, q, kv: math.ceil(s), lambda s, b, h, q, kv: tw.ceil(s)),
        (lambda s, b, h, q, kv: s + sum(divmod(q, 3)), lambda s, b, h, q, kv: s + q // 3 + q % 3),
        (lambda s, b, h, q, kv: s + divmod(7, q + 1)[1], lambda s, b, h, q, kv: s + 7 % (q + 1)),
    ):
        np.testing.assert_allclose(attend(score_mod=mod), attend(score_mod=same), rtol=1e-5)
    with pytest.raises(TypeError, match="without digits but got 2"):
        attend(score_mod=lambda s, b, h, q, kv: round(s, 2))


# ---- B and H of masks.


@pytest.mark.parametrize(
    ("mod", "sizes", "missing"),
    [
        (lambda b, h, q, kv: q >= kv + b, (None, 2), r"expected B, since .* batch \(b\)"),
        (
            lambda b, h, q, kv: q >= kv + b * h,
            (None, None),
            r"expected B and H, since the mod depends on the batch \(b\) and head \(h\)",
        ),
        (lambda b, h, q, kv: q >= kv + h, (2, None), r"expected H, since .* head \(h\)"),
        (tw.masks.document(np.zeros((2, 8), np.int32)), (None, None), "expected B"),
        (tw.parse_mod("q >= kv * h", kind="mask"), (None, None), "expected H"),
    ],
)
def test_masks_say_which_sizes_they_need(mod, sizes, missing):
    for create in (tw.create_block_mask, tw.create_mask):
        with pytest.raises(ValueError, match=missing):
            create(mod, *sizes, 8, 8)
        create(mod, 2, 2, 8, 8)
    for free in (tw.masks.causal(), tw.masks.document(np.zeros(8, np.int32))):
        assert tw.create_block_mask(free, None, None, 8, 8).shape == (1, 1, 8, 8)
    with pytest.raises(ValueError, match="expected H"):
        tw.create_scores(lambda s, b, h, q, kv: s * h, 1, None, 8, 8)


def test_one_head_s_mask_does_not_stand_for_others():
    mod = lambda b, h, q, kv: q >= kv + h  # noqa: E731
    one = tw.create_block_mask(mod, 1, 1, 8, 8)
    for mask in (one, one & one, ~one, pickle.loads(pickle.dumps(one))):
        with pytest.raises(ValueError, match="expected a block mask of 2 heads"):
            attend(block_mask=mask)
    attend(block_mask=tw.create_block_mask(mod, 1, 2, 8, 8))
    attend(block_mask=tw.create_block_mask(mod, 1, 2, 8, 8)[:, 1])  # asked for
    lists = tw.create_block_mask(tw.masks.causal(), 1, 1, 8, 8)
    made = tw.BlockMask.from_kv_blocks(
        lists.kv_num_blocks, lists.kv_indices, mask_mod=mod, seq_lengths=(8, 8)
    )
    with pytest.raises(ValueError, match="expected a block mask of 2 heads"):
        attend(block_mask=made)


def test_devices_of_masks():
    mask = tw.masks.causal()
    assert tw.create_mask(mask, 1, 1, 4, 4, device="cpu").sum() == 10
    if "cuda:0" in tw.devices():
        assert tw.create_mask(mask, 1, 1, 4, 4, device="cuda").sum() == 10
    else:
        with pytest.raises(ValueError, match=r"expected a device of this machine, cpu, but got"):
            tw.create_mask(mask, 1, 1, 4, 4, device="cuda")
    with pytest.raises(ValueError, match="expected device None"):
        tw.create_mask(mask, 1, 1, 4, 4, device="tpu")


# ---- Outside of mods.


def test_functions_compute_with_numbers():
    assert tw.where(True, 1, 2) == 1
    x = np.linspace(0.1, 2, 5)
    np.testing.assert_array_equal(tw.where(x > 1, x, 0), np.where(x > 1, x, 0))
    for name in ("exp", "tanh", "floor", "abs", "log1p", "sign"):
        np.testing.assert_array_equal(getattr(tw, name)(x), getattr(np, name)(x))
    assert tw.sigmoid(0.0) == 0.5 and tw.rsqrt(4.0) == 0.5 and tw.reciprocal(4) == 0.25
    assert tw.erf(0.5) == pytest.approx(0.5204998778)
    assert tw.relu(-1) == 0 and tw.softplus(0.0) == pytest.approx(np.log(2))
    assert tw.clamp(7, 0, 5) == 5 and tw.pow(2, 3) == 8 and tw.isnan(np.nan)
    assert tw.min([3, 2]) == 2 and tw.max([3, 2]) == 3


def test_library_objects_evaluate_one_pair():
    assert tw.masks.causal()(0, 0, 2, 1) is True
    assert tw.masks.causal()(0, 0, 1, 2) is False
    assert tw.masks.document(np.array([0, 0, 1]))(0, 0, 0, np.int64(2)) is False
    assert tw.scores.alibi(SLOPES)(1.0, 0, 1, 0, 4) == 2.0
    assert tw.parse_mod("score * 2 + kv")(1.5, 0, 0, 0, 3) == 6.0
    both = tw.masks.causal() & tw.masks.sliding_window(1)
    assert [both(0, 0, 3, kv) for kv in range(4)] == [False, False, True, True]
    with pytest.raises(TypeError, match="expected integers as positions"):
        tw.masks.causal()(0, 0, 1.5, 2)


def test_create_scores_is_the_definition():
    def mod(score, b, h, q, kv):
        return tw.tanh(score) + (kv - q) * (h + 1) + b

    given = np.random.default_rng(0).standard_normal((2, 1, 3, 4))
    b, h, q, kv = np.ogrid[:2, :2, :3, :4]
    for dtype in (np.float32, np.float64):
        have = tw.create_scores(mod, 2, 2, 3, 4, given.astype(dtype))
        want = np.tanh(given.astype(dtype)) + (kv - q) * (h + 1) + b
        assert have.dtype == dtype and have.shape == (2, 2, 3, 4)
        np.testing.assert_allclose(have, want, rtol=4 * np.finfo(dtype).eps, atol=1e-6)
    assert tw.create_scores(tw.scores.relative_position(), None, None, 2, 3).dtype == np.float32
    with pytest.raises(ValueError, match=r"scores that broadcast to \(1, 1, 2, 3\) but got \(5,\)"):
        tw.create_scores(tw.scores.softcap(2), None, None, 2, 3, np.zeros(5))
    with pytest.raises(ValueError, match="f32 or f64 but got f16"):
        tw.create_scores(tw.scores.softcap(2), None, None, 2, 3, np.zeros(3, np.float16))


# ---- Reprs and signatures.


def test_reprs_are_short():
    shown = []

    def mod(s, b, h, q, kv):
        shown.extend([repr(s), repr(q - kv), repr(q > kv), repr(tw.capture(SLOPES)[:] * 2)])
        return s

    out, pullback = tw.flex_attention_vjp(Q, Q, Q, mod)
    assert shown[:4] == ["Scalar(f32)", "Scalar(i64)", "Scalar(bool)", "Row(2 x Scalar(f32))"]
    assert repr(pullback(out)) == (
        "Gradients(query=float32[2, 2, 8, 4], key=float32[2, 2, 8, 4], value=float32[2, 2, 8, 4], "
        "sinks=None, captured=[float32[2]])"
    )
    assert repr(tw.masks.causal()) == "<mask mod causal>"
    assert repr(tw.scores.alibi(SLOPES)) == "<score mod alibi>"
    assert repr(~tw.masks.causal()) == "<mask mod>"
    y, pullback = tw.rms_norm_vjp(Q)
    assert repr(pullback(y)).startswith("NormGradients(x=float32[2, 2, 8, 4], weight=None")


def test_a_scalar_of_an_old_trace_has_a_repr():
    kept = []
    attend(score_mod=lambda s, b, h, q, kv: kept.append(q) or s)
    assert repr(kept[0]) == "Tile(of a trace that has ended)"


@pytest.mark.parametrize("library", [tw.masks, tw.scores])
def test_library_functions_have_signatures(library):
    for name in library.__all__:
        signature = inspect.signature(getattr(library, name))
        assert "arguments" not in signature.parameters, name
    assert str(inspect.signature(tw.masks.sliding_window)) == "(w: 'int') -> 'Mod'"
    assert str(inspect.signature(tw.scores.softcap)) == (
        "(cap: 'float', approx: 'bool' = False) -> 'Mod'"
    )
    assert list(inspect.signature(tw.scores.alibi).parameters) == ["slopes_or_heads"]
    assert inspect.signature(tw.masks.selected_tiles).parameters["sizes"].default is None
    for name in ("exp", "where", "minimum", "clamp"):
        assert "arguments" not in inspect.signature(getattr(tw, name)).parameters


# ---- Copies.


def test_mods_pickle():
    table = np.arange(8, dtype=np.float32)
    mods = {
        "library": tw.scores.alibi(SLOPES),
        "text": tw.parse_mod("score + t[kv] * slopes[h]", t=table, slopes=SLOPES),
        "mask": tw.masks.document(np.arange(8) // 3) & tw.masks.causal(),
    }
    for mod in mods.values():
        again = pickle.loads(pickle.dumps(mod))
        assert (again.is_mask, again.name) == (mod.is_mask, mod.name)
        key = "mask_mod" if mod.is_mask else "score_mod"
        for q in (Q, Q.astype(np.float64)):
            options = {key: mod}, {key: again}, {key: copy.deepcopy(mod)}
            outs = [tw.flex_attention(q, q, q, **o) for o in options]
            np.testing.assert_array_equal(outs[0], outs[1])
            np.testing.assert_array_equal(outs[0], outs[2])
    out, pullback = tw.flex_attention_vjp(Q, Q, Q, pickle.loads(pickle.dumps(mods["library"])))
    assert pullback(out).captured[0].shape == (2,)


def test_block_masks_hash_by_content():
    masks = [tw.create_block_mask(tw.masks.causal(), None, None, 200, 200) for _ in range(2)]
    other = tw.create_block_mask(tw.masks.sliding_window(3), None, None, 200, 200)
    assert len({*masks, other, pickle.loads(pickle.dumps(other))}) == 2
