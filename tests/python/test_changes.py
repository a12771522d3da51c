"""Arrays changed in place between a forward pass and its pullback are detected."""

import numpy as np
import pytest

import tilewright as tw


def arrays():
    rng = np.random.default_rng(0)
    names = ("query", "key", "value")
    given = {n: rng.standard_normal((1, 2, 40, 8)).astype(np.float32) for n in names}
    given["sinks"] = np.zeros(2, np.float32)
    given["segment_ids"] = np.zeros((1, 40), np.int32)
    given["kv_lengths"] = np.full(1, 40, np.int32)
    return given


SLOPES, IDS = np.ones(2, np.float32), np.zeros(40, np.int32)


def forward(given):
    slopes, ids = tw.capture(SLOPES, "slopes"), tw.capture(IDS, "ids")
    return tw.flex_attention_vjp(
        **given,
        score_mod=lambda s, b, h, q, kv: s + slopes[h] * (kv - q),
        mask_mod=lambda b, h, q, kv: ids[q] == ids[kv],
    )


@pytest.mark.parametrize("name", arrays())
def test_arguments(name):
    given = arrays()
    out, pullback = forward(given)
    before = pullback(out).query
    kept = given[name].flat[-1]
    given[name].flat[-1] += 1
    with pytest.raises(ValueError, match=rf"\[pullback\] expected {name} as it was in the forward"):
        pullback(out)
    given[name].flat[-1] = kept
    np.testing.assert_array_equal(pullback(out).query, before)


def test_captures_and_the_result():
    given = arrays()
    out, pullback = forward(given)
    for array, what in (
        (SLOPES, "`slopes` of score_mod"),
        (IDS, "`ids` of mask_mod"),
        (out, "`out`"),
    ):
        kept = array.flat[0]
        array.flat[0] += 1
        with pytest.raises(ValueError, match=what):
            pullback(np.ones_like(out))
        array.flat[0] = kept
    pullback(np.ones_like(out))


def test_strided_arrays():
    big = np.random.default_rng(0).standard_normal((1, 2, 40, 16)).astype(np.float32)
    query = big[..., ::2]
    out, pullback = tw.flex_attention_vjp(query, query, query)
    big[..., 1::2] = 0  # which is not read
    pullback(out)
    big[0, 0, 7, 2] = 5
    with pytest.raises(ValueError, match="expected query as it was"):
        pullback(out)


@pytest.mark.parametrize("norm", [tw.rms_norm_vjp, tw.layer_norm_vjp])
def test_norms(norm):
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    weight = np.ones(64, np.float32)
    y, pullback = norm(x, weight)
    pullback(y)
    for array, name in ((x, "x"), (weight, "weight")):
        kept = array.flat[5]
        array.flat[5] += 1
        with pytest.raises(ValueError, match=f"expected {name} as it was in the forward pass"):
            pullback(y)
        array.flat[5] = kept
    (y, total), pullback = norm(x, weight, residual=x)
    x += 1  # which is not read any more
    pullback(y)
    total += 1
    with pytest.raises(ValueError, match=r"the result `x \+ residual`"):
        pullback(y)
