"""flex_attention against its definition in float64 NumPy, forward and backward."""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import _core

UNIT = {
    np.float64: 2.0**-53,
    np.float32: 2.0**-24,
    np.float16: 2.0**-11,
    ml_dtypes.bfloat16: 2.0**-8,
}


def inputs(
    shape_q=(2, 4, 37, 16), kv_heads=4, kv_length=53, value_dim=24, dtype=np.float32, seed=0
):
    rng = np.random.default_rng(seed)
    batch, _, _, dim = shape_q
    query = rng.standard_normal(shape_q)
    key = rng.standard_normal((batch, kv_heads, kv_length, dim))
    value = rng.standard_normal((batch, kv_heads, kv_length, value_dim))
    return [x.astype(dtype) for x in (query, key, value)]


def grid(query, key):
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return np.ogrid[tuple(slice(extent) for extent in shape)]


def reference(query, key, value, score=None, mask=None, sinks=None, scale=None):
    """(out, lse, probabilities) in float64; `score` and `mask` take broadcastable arrays."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    group = query.shape[1] // key.shape[1]
    key, value = (np.repeat(x, group, axis=1) for x in (key, value))
    scale = 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    scores = np.einsum("bhqd,bhkd->bhqk", query, key) * scale
    b, h, q, kv = grid(query, key)
    if score is not None:
        scores = score(scores, b, h, q, kv)
    if mask is not None:
        scores = np.where(mask(b, h, q, kv), scores, -np.inf)
    peak = scores.max(-1, keepdims=True)
    if sinks is not None:
        peak = np.maximum(peak, np.asarray(sinks, np.float64)[:, None, None])
    peak = np.where(np.isfinite(peak), peak, 0)
    weights = np.exp(scores - peak)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64)[:, None, None] - peak)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (np.log(total) + peak)[..., 0]
        weights = np.where(total > 0, weights / total, 0)
    return np.einsum("bhqk,bhkd->bhqd", weights, value), lse, weights


def close(have, want, dtype, roundings=16):
    have = np.asarray(have, np.float64)
    assert have.shape == want.shape
    finite = np.isfinite(want)
    assert np.array_equal(have[~finite], want[~finite])
    error = np.abs(have[finite] - want[finite]).max(initial=0)
    assert error <= roundings * UNIT[dtype] * max(1.0, np.abs(want[finite]).max(initial=0))


def slope(loss, point, i, direction, step=1e-5):
    """Derivative of loss(*point) by point[i] along a direction, by central differences."""
    up, down = list(point), list(point)
    up[i], down[i] = point[i] + step * direction, point[i] - step * direction
    return (loss(*up) - loss(*down)) / (2 * step)


CASES = {
    "none": ({}, None, None),
    "causal": ({"causal": True}, None, lambda b, h, q, kv: q >= kv),
    "window": ({"window": (5, 2)}, None, lambda b, h, q, kv: (q - kv <= 5) & (kv - q <= 2)),
    "mask_mod": (
        {"mask_mod": lambda b, h, q, kv: (q + kv + h) % 3 != 0},
        None,
        lambda b, h, q, kv: (q + kv + h) % 3 != 0,
    ),
    "empty_rows": (
        {"mask_mod": lambda b, h, q, kv: q % 2 == 0},
        None,
        lambda b, h, q, kv: (q % 2 == 0) & (kv >= 0),
    ),
    "relative": (
        {"score_mod": lambda s, b, h, q, kv: s + (q - kv) * 0.0078125},
        lambda s, b, h, q, kv: s + (q - kv) * 0.0078125,
        None,
    ),
    "softcap_causal": (
        {"score_mod": lambda s, b, h, q, kv: 2 * np.tanh(s / 2), "causal": True},
        lambda s, b, h, q, kv: 2 * np.tanh(s / 2),
        lambda b, h, q, kv: q >= kv,
    ),
    "select": (
        {"score_mod": lambda s, b, h, q, kv: tw.where(q >= kv, s, -np.inf)},
        lambda s, b, h, q, kv: np.where(q >= kv, s, -np.inf),
        None,
    ),
    "library": (
        {"score_mod": tw.scores.alibi(heads=4), "mask_mod": tw.masks.sliding_window(9)},
        lambda s, b, h, q, kv: s + 2.0 ** (-8 * (h + 1) / 4) * (kv - q),
        lambda b, h, q, kv: (q - kv >= 0) & (q - kv <= 9),
    ),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_forward_is_its_definition(case, dtype):
    options, score, mask = CASES[case]
    arrays = inputs(dtype=dtype)
    out, lse = tw.flex_attention(*arrays, return_lse=True, **options)
    want, want_lse, _ = reference(*arrays, score, mask)
    assert out.dtype == dtype
    close(out, want, dtype)
    close(lse, want_lse, dtype if dtype is np.float64 else np.float32)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_finite_differences(case):
    options, score, mask = CASES[case]
    arrays = inputs((1, 4, 9, 4), kv_length=7, value_dim=3, dtype=np.float64)
    rng = np.random.default_rng(1)
    (out, _), pullback = tw.flex_attention_vjp(*arrays, return_lse=True, **options)
    dout = rng.standard_normal(out.shape)
    _, want_lse, _ = reference(*arrays, score, mask)
    dlse = np.where(np.isfinite(want_lse), rng.standard_normal(want_lse.shape), 0)
    gradients = pullback(dout, dlse)
    assert gradients.sinks is None and gradients.captured == []

    def loss(*values):
        value, lse, _ = reference(*values, score, mask)
        return (value * dout).sum() + (np.where(np.isfinite(lse), lse, 0) * dlse).sum()

    for i in range(3):
        direction = rng.standard_normal(arrays[i].shape)
        want = slope(loss, arrays, i, direction)
        have = (gradients[i] * direction).sum()
        assert abs(have - want) <= 1e-7 * max(1, abs(want))


def test_gradients_of_captures_and_sinks():
    arrays = inputs((2, 4, 9, 4), kv_length=9, value_dim=3, dtype=np.float64)
    rng = np.random.default_rng(2)
    slopes, table, sinks = (
        rng.standard_normal(4),
        rng.standard_normal((4, 17)),
        rng.standard_normal(4),
    )

    def mod(s, b, h, q, kv):
        return s * tw.exp(captured[0][h]) + captured[1][h, q - kv + 8]

    captured = [tw.capture(slopes), tw.capture(table)]
    out, pullback = tw.flex_attention_vjp(*arrays, score_mod=mod, sinks=sinks)
    dout = rng.standard_normal(out.shape)

    def loss(a, t, sink):
        def score(s, b, h, q, kv):
            return s * np.exp(a[h]) + t[h, q - kv + 8]

        return (reference(*arrays, score, None, sink)[0] * dout).sum()

    gradients = pullback(dout)
    have = [*gradients.captured, gradients.sinks]
    point = [slopes, table, sinks]
    assert [x.shape for x in have] == [x.shape for x in point]
    for i, gradient in enumerate(have):
        direction = rng.standard_normal(point[i].shape)
        want = slope(loss, point, i, direction)
        assert abs((gradient * direction).sum() - want) <= 1e-7 * max(1, abs(want))


def test_grouped_heads_need_enable_gqa():
    arrays = inputs((1, 8, 20, 8), kv_heads=2)
    with pytest.raises(ValueError, match="enable_gqa"):
        tw.flex_attention(*arrays)
    want, _, _ = reference(*arrays)
    close(tw.flex_attention(*arrays, enable_gqa=True), want, np.float32)


def test_layouts_and_strides():
    arrays = inputs()
    want = tw.flex_attention(*arrays, causal=True)
    swapped = [x.transpose(0, 2, 1, 3) for x in arrays]
    out = tw.flex_attention(*swapped, causal=True, layout="bshd")
    np.testing.assert_array_equal(out.transpose(0, 2, 1, 3), want)
    reversed_ = [np.ascontiguousarray(x[..., ::-1])[..., ::-1] for x in arrays]
    close(tw.flex_attention(*reversed_, causal=True), want.astype(np.float64), np.float32)


def test_segments_and_packed_sequences():
    query, key, value = inputs((1, 4, 40, 16), kv_length=40)
    ids = np.repeat([3, 1, 2], [7, 20, 13])[None].astype(np.int32)
    want, _, _ = reference(
        query, key, value, None, lambda b, h, q, kv: (ids[0][q] == ids[0][kv]) & (q >= kv)
    )
    close(tw.flex_attention(query, key, value, segment_ids=ids, causal=True), want, np.float32)
    packed = tw.flex_attention(
        query, key, value, cu_seqlens=np.array([0, 7, 27, 40], np.int32), causal=True,
        score_mod=lambda s, b, h, q, kv: s + b * 0.1 + q * 0.01,
    )  # fmt: skip
    for sequence, (begin, end) in enumerate([(0, 7), (7, 27), (27, 40)]):
        part = [x[:, :, begin:end] for x in (query, key, value)]
        want, _, _ = reference(
            *part,
            lambda s, b, h, q, kv, n=sequence: s + n * 0.1 + q * 0.01,
            lambda b, h, q, kv: q >= kv,
        )
        close(packed[:, :, begin:end], want, np.float32)


def test_keys_past_their_length_do_not_exist():
    query, key, value = inputs(kv_heads=2)
    lengths = np.array([20, 0], np.int32)
    for array in (key, value):
        array[0, :, 20:] = np.nan
        array[1] = np.nan
    dout = np.random.default_rng(3).standard_normal((2, 4, 37, 24)).astype(np.float32)

    def run(query, key, value, dout, **arguments):
        (out, lse), pullback = tw.flex_attention_vjp(
            query, key, value, enable_gqa=True, return_lse=True, **arguments
        )
        return out, lse, pullback(dout)

    out, lse, gradients = run(query, key, value, dout, kv_lengths=lengths)
    want_out, want_lse, want = run(query[:1], key[:1, :, :20], value[:1, :, :20], dout[:1])
    np.testing.assert_allclose(out[:1], want_out, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lse[:1], want_lse, rtol=1e-5)
    np.testing.assert_allclose(gradients.query[:1], want.query, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients.key[:1, :, :20], want.key, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients.value[:1, :, :20], want.value, rtol=1e-4, atol=1e-5)
    assert not gradients.key[0, :, 20:].any() and not gradients.value[1].any()
    assert not out[1].any() and np.isneginf(lse[1]).all()
    for wrong in ([54, 3], [-1, 3]):
        with pytest.raises(ValueError, match="kv_lengths from 0 to the keys' length 53"):
            tw.flex_attention(query, key, value, enable_gqa=True, kv_lengths=np.array(wrong))


def test_masked_nan_contributes_nothing_and_every_finite_score_counts():
    query, key, value = inputs()
    want = tw.flex_attention(query, key, value, causal=True)
    for array in (key, value):
        array[:, :, 37:] = np.nan  # after the last query
    np.testing.assert_allclose(
        tw.flex_attention(query, key, value, causal=True), want, rtol=1e-5, atol=1e-6
    )
    _, key, value = inputs()
    for dtype, most in ((np.float32, 3.4e38), (np.float64, 1.79e308)):
        arrays = [x.astype(dtype) for x in (query, key, value)]
        for score in (most / 2, most):
            out, lse = tw.flex_attention(
                *arrays,
                score_mod=lambda s, b, h, i, j, score=score: tw.where(j == 2, score, s),
                return_lse=True,
            )
            np.testing.assert_array_equal(out[:, :, 5], arrays[2][:, :, 2])
            np.testing.assert_array_equal(lse, dtype(score))


@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 3.4e38), (np.float64, 1.79e308)])
def test_rows_of_large_scores_have_gradients(dtype, most):
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 4)).astype(dtype)
    bias = tw.capture(np.zeros(2, dtype), "bias")

    def score(s, b, h, q, kv):  # even rows see keys 2 and 5 equally, and no others
        far = tw.where((kv == 2) | (kv == 5), most, -most) + bias[h]
        return tw.where(q % 2 == 0, far, s + bias[h])

    out, pullback = tw.flex_attention_vjp(x, x, x, score)
    np.testing.assert_allclose(out[:, :, ::2], x[:, :, [2, 5]].mean(2, keepdims=True).repeat(5, 2))
    even = np.zeros_like(x)
    even[:, :, ::2] = 1
    got = pullback(even)
    want = np.zeros_like(x)
    want[:, :, [2, 5]] = 5 / 2
    np.testing.assert_allclose(got.value, want, rtol=1e-6)
    np.testing.assert_array_equal(got.query, 0)
    near = pullback(np.ones_like(x) - even)  # odd rows are as without even ones
    probabilities = np.einsum("bhqd,bhkd->bhqk", x[:, :, 1::2], x) / 2
    probabilities = np.exp(probabilities - probabilities.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    np.testing.assert_allclose(
        near.value, probabilities.sum(2)[..., None].repeat(4, -1), rtol=1e-4, atol=1e-6
    )


def test_sinks_enter_the_denominator_alone():
    arrays = inputs()
    sinks = np.linspace(-1, 2, 4).astype(np.float32)
    out, aux = tw.flex_attention(
        *arrays, sinks=sinks, return_aux=tw.AuxRequest(lse=True, max_scores=True)
    )
    want, lse, _ = reference(*arrays, sinks=sinks)
    close(out, want, np.float32)
    close(aux.lse, lse, np.float32)
    scores = np.einsum("bhqd,bhkd->bhqk", *(x.astype(np.float64) for x in arrays[:2])) / 4
    close(aux.max_scores, scores.max(-1), np.float32)


@pytest.mark.parametrize(
    "mask",
    [
        lambda b, h, q, kv: q * 2**48 > kv * 2**48,
        lambda b, h, q, kv: (q - kv) * 2**40 * 2**20 >= 5,
        lambda b, h, q, kv: (q > 2**63 - 1) | (kv < 3),
        lambda b, h, q, kv: (kv <= -(2**63)) | (q < 40),
        lambda b, h, q, kv: (kv != -(2**63)) & (kv <= q),
        lambda b, h, q, kv: 2**62 + q > 2**62 + kv,
    ],
)
def test_comparisons_of_large_integers_are_exact(mask):
    q, kv = np.arange(64)[:, None] + 0 * np.arange(64), np.arange(64) + 0 * np.arange(64)[:, None]
    want = mask(0, 0, q, kv)
    assert np.array_equal(tw.create_mask(mask, 1, 1, 64, 64)[0, 0], want)
    zeros = np.zeros((1, 1, 64, 8), np.float32)
    lse = tw.flex_attention(zeros, zeros, zeros, mask_mod=mask, return_lse=True)[1]
    assert np.array_equal(np.exp(lse[0, 0]).round(), want.sum(1))


def test_dropout_has_the_same_bits_for_any_number_of_threads():
    arrays = inputs((1, 2, 128, 16), kv_heads=2, kv_length=128)
    first = tw.flex_attention(*arrays, dropout=0.5, seed=7)
    tw.set_num_threads(1)
    second = tw.flex_attention(*arrays, dropout=0.5, seed=7)
    tw.set_num_threads(0)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, tw.flex_attention(*arrays, dropout=0.5, seed=8))
    many = np.mean([tw.flex_attention(*arrays, dropout=0.5, seed=s) for s in range(200)], axis=0)
    assert np.abs(many - tw.flex_attention(*arrays)).max() < 0.25


def misses(cache):
    return _core.cache_counts()[cache][3]


def test_captured_numbers_change_without_a_new_program():
    arrays = inputs()
    factor = np.array(1.0, np.float32)
    scale = tw.capture(factor)
    made = []  # tile programs that were compiled after each value
    for value in (1.0, 0.5, 2.0):
        factor[...] = value
        out = tw.flex_attention(*arrays, score_mod=lambda s, b, h, q, kv: s * scale)
        want, _, _ = reference(*arrays, lambda s, b, h, q, kv, v=value: s * v)
        close(out, want, np.float32)
        made.append(misses("calls of tile programs"))
    assert made[0] == made[1] == made[2]
    tw.flex_attention(*arrays, score_mod=lambda s, b, h, q, kv: s * 0.123)
    assert misses("calls of tile programs") > made[2]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"score_mod": lambda s, b, h, q, kv: q > kv}, ValueError, "expected score_mod to return"),
        ({"mask_mod": lambda b, h, q, kv: q}, ValueError, "bool"),
        ({"mask_mod": lambda s, b, h, q, kv: s}, TypeError, "expected mask_mod to be a function"),
        ({"score_mod": tw.masks.causal()}, TypeError, "but got a mask"),
        ({"window": 3}, TypeError, "expected window"),
        ({"window": (-2, 0)}, ValueError, "window"),
        ({"layout": "sbhd"}, ValueError, "expected layout"),
        ({"scale": float("nan")}, ValueError, "expected a finite scale"),
        ({"scale": "large"}, TypeError, "expected scale to be a number"),
        ({"window": (1.5, 0)}, TypeError, "expected window"),
        ({"dropout": "half"}, TypeError, "expected dropout to be a number"),
        ({"seed": -1}, ValueError, "expected a seed"),
        ({"seed": 0.5}, TypeError, "expected seed"),
        ({"kernel_options": {"BLOCK_Q": 64}}, ValueError, "BLOCK_Q"),
        ({"return_lse": True, "return_aux": tw.AuxRequest()}, ValueError, "both"),
        ({"return_aux": {"lse": True}}, TypeError, "AuxRequest"),
        ({"sinks": np.zeros(3, np.float32)}, ValueError, "sinks"),
        ({"dropout": 1.0}, ValueError, "dropout"),
        ({"segment_ids": np.zeros((2, 5), np.int32)}, ValueError, "segment_ids"),
        ({"device": "tpu"}, ValueError, "expected device"),
        ({"causal": "no"}, TypeError, "expected causal to be True or False but got 'no'"),
        ({"deterministic": None}, TypeError, "expected deterministic"),
        ({"return_lse": "lse"}, TypeError, "expected return_lse"),
        ({"enable_gqa": 2}, TypeError, "expected enable_gqa"),
    ],
)
def test_bad_input_is_named(options, error, text):
    with pytest.raises(error, match=text):
        tw.flex_attention(*inputs(), **options)


def test_flags_of_numpy_are_flags():
    arrays = inputs()
    want = tw.flex_attention(*arrays, causal=True)
    for flag in (1, np.True_):
        np.testing.assert_array_equal(tw.flex_attention(*arrays, causal=flag), want)


def test_bad_gradients_are_named():
    arrays = inputs()
    (out, lse), pullback = tw.flex_attention_vjp(*arrays, return_lse=True)
    with pytest.raises(ValueError, match="expected dlse of floats but got i32"):
        pullback(out, lse.astype(np.int32))
    for have, want in zip(pullback(out, lse.astype(np.float64)), pullback(out, lse), strict=True):
        np.testing.assert_array_equal(have, want)
    table = tw.capture(np.ones((1,) * 7 + (60,), np.float32))
    out, pullback = tw.flex_attention_vjp(
        *arrays, lambda s, b, h, q, kv: s + table[0, 0, 0, 0, 0, 0, 0, kv]
    )
    with pytest.raises(ValueError, match="a gradient of at most 7 dimensions"):
        pullback(out)


def test_known_kernel_options_are_hints():
    arrays = inputs()
    options = {"BLOCK_M2": 64, "fwd_num_warps": 4, "ROWS_GUARANTEED_SAFE": True, "autotune": False}
    np.testing.assert_array_equal(
        tw.flex_attention(*arrays, kernel_options=options), tw.flex_attention(*arrays)
    )


def test_precision_is_of_f32_and_computes_ieee_on_cpus():
    arrays = inputs()
    for precision in ("ieee", "tf32", "bf16x3"):
        options = {"precision": precision}
        np.testing.assert_array_equal(
            tw.flex_attention(*arrays, kernel_options=options), tw.flex_attention(*arrays)
        )
    wide = [np.asarray(x, np.float64) for x in arrays]
    with pytest.raises(ValueError, match="precision `ieee` with query of f64 but got `tf32`"):
        tw.flex_attention(*wide, kernel_options={"precision": "tf32"})


def every_result(arrays, **options):
    def mod(s, b, h, q, kv):
        return s + table[h, q - kv + 60]

    table = tw.capture(np.sin(np.arange(4 * 120, dtype=np.float32)).reshape(4, 120))
    (out, lse), pullback = tw.flex_attention_vjp(
        *arrays, mod, causal=True, return_lse=True, **options
    )
    gradients = pullback(out)
    return [out, lse, *gradients[:3], *gradients.captured]


@pytest.mark.parametrize("q", [1, 7, 16, 48, 4096])
@pytest.mark.parametrize("kv", [1, 16, 24, 1000])
def test_blocks_of_any_size_give_the_same(q, kv):
    arrays = inputs()
    mask = tw.create_block_mask(lambda b, h, q, kv: (q + kv) % 7 != 3, 2, 1, 37, 53)
    options = {"BLOCK_M": q, "BLOCK_N": kv, "bwd_BLOCK_M1": q, "BLOCK_N1": kv}
    for masks in ({}, {"block_mask": mask}):
        have = every_result(arrays, kernel_options=options, **masks)
        for x, want in zip(have, every_result(arrays, **masks), strict=True):
            np.testing.assert_allclose(x, want, atol=2e-5)


def test_autotune_measures_once_and_keeps_the_results(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    arrays = inputs()
    first = every_result(arrays, kernel_options={"autotune": True})
    entries = sorted(tmp_path.rglob("*"))
    assert len([path for path in entries if path.is_file()]) == 2  # forward and backward
    again = every_result(arrays, kernel_options={"autotune": True})
    assert sorted(tmp_path.rglob("*")) == entries
    for x, same, want in zip(first, again, every_result(arrays), strict=True):
        np.testing.assert_array_equal(x, same)
        np.testing.assert_allclose(x, want, atol=2e-5)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (3, TypeError, "expected kernel_options to be a dict"),
        ({"BLOCK_M": 0}, ValueError, "BLOCK_M'. of at least 1"),
        ({"fwd_BLOCK_N": 1.5}, TypeError, "fwd_BLOCK_N'. to be an integer"),
        ({"autotune": "yes"}, TypeError, "autotune'. to be a bool"),
        ({"BACKEND": 1}, TypeError, "BACKEND'. to be text"),
        ({"precision": "fast"}, ValueError, 'precision "ieee", "tf32" or "bf16x3" but got .fast'),
        ({"fwd_precision": "tf32"}, ValueError, "one precision for both passes"),
    ],
)
def test_bad_kernel_options_are_named(options, error, text):
    with pytest.raises(error, match=text):
        tw.flex_attention(*inputs(), kernel_options=options)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4)])
def test_empty_problems(shape):
    query = np.zeros(shape, np.float32)
    key = np.zeros((shape[0], shape[1], 5, 4), np.float32)
    assert tw.flex_attention(query, key, key).shape == shape
    none = np.zeros((1, 2, 0, 4), np.float32)
    out, lse = tw.flex_attention(np.ones((1, 2, 3, 4), np.float32), none, none, return_lse=True)
    assert np.all(out == 0) and np.all(lse == -np.inf)


@pytest.mark.parametrize("B, H", [(None, None), (2, 4), (1, 4)])
def test_block_masks_meet_the_other_masks(B, H):
    arrays = inputs(dtype=np.float64)

    def mod(b, h, q, kv):
        return (q + kv) % 7 != 3

    mask = tw.create_block_mask(mod, B, H, 37, 53)
    out, pullback = tw.flex_attention_vjp(*arrays, block_mask=mask, causal=True)
    want, want_pullback = tw.flex_attention_vjp(*arrays, mask_mod=mod, causal=True)
    expected, _, _ = reference(*arrays, None, lambda b, h, q, kv: mod(b, h, q, kv) & (q >= kv))
    close(out, expected, np.float64)
    for have, wanted in zip(pullback(out)[:3], want_pullback(want)[:3], strict=True):
        close(have, wanted, np.float64)


def test_block_masks_of_other_lengths_are_refused():
    mask = tw.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 37, 54)
    with pytest.raises(ValueError, match="54"):
        tw.flex_attention(*inputs(), block_mask=mask)
    with pytest.raises(TypeError, match="expected block_mask to be a BlockMask"):
        tw.flex_attention(*inputs(), block_mask=lambda b, h, q, kv: q >= kv)
