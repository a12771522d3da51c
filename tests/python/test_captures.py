"""Captured arrays: indices as in NumPy, use outside of mods, refusals."""

import pickle

import numpy as np
import pytest

import tilewright as tw

RNG = np.random.default_rng(0)
TABLE = RNG.integers(0, 100, (2, 3, 4)).astype(np.float32)
SHORT = np.array([10.0, 11.0, 12.0, 13.0], np.float32)


def scores(mod, Q=5, KV=7, H=1):
    return tw.create_scores(mod, 1, H, Q, KV)[0]


Q, KV = (x.astype(int) for x in np.mgrid[:5, :7])
CASES = {
    "the last": (lambda c, q, kv: c[0, 1, -1], TABLE[0, 1, -1]),
    "from the end": (lambda c, q, kv: c[-2, -3, -4], TABLE[0, 0, 0]),
    "traced, negative": (lambda c, q, kv: c[1, 2, q - 4], TABLE[1, 2, Q - 4]),
    "traced, of both signs": (lambda c, q, kv: c[1, (kv - q) % 6 - 3, 0], TABLE[1, (KV - Q) % 6 - 3, 0]),
    "an ellipsis": (lambda c, q, kv: c[..., 2][1, -1], TABLE[1, -1, 2]),
    "an ellipsis inside": (lambda c, q, kv: c[1, ..., -1][0], TABLE[1, 0, -1]),
    "a slice's row": (lambda c, q, kv: tw.sum(c[1, :, 0]), TABLE[1, :, 0].sum()),
    "part of a row": (lambda c, q, kv: tw.sum(c[1, 0, 1:3]), TABLE[1, 0, 1:3].sum()),
    "a slice with a step": (lambda c, q, kv: tw.dot(c[0, 0, ::-2], c[1, 1, ::2]), TABLE[0, 0, ::-2] @ TABLE[1, 1, ::2]),
    "a slice indexed": (lambda c, q, kv: c[1, 2, 1:][q - 3], TABLE[1, 2, 1:][np.clip(Q - 3, -3, 2)]),
    "a slice of a slice": (lambda c, q, kv: c[:, 1:][1, 1:][0, -1], TABLE[:, 1:][1, 1:][0, -1]),
    "one after the other": (lambda c, q, kv: c[1][2][3], TABLE[1][2][3]),
    "numbers of NumPy": (lambda c, q, kv: c[np.int64(1), np.int8(-1), 0], TABLE[1, -1, 0]),
    "elements one by one": (lambda c, q, kv: sum(c[1, 1]), TABLE[1, 1].sum()),
    "extremes": (lambda c, q, kv: tw.max(c[0, 0]) * tw.min(c[0, 0]), TABLE[0, 0].max() * TABLE[0, 0].min()),
    "clamped beyond": (lambda c, q, kv: c[0, 0, q - 9] + c[0, 0, q + 9], TABLE[0, 0, 0] + TABLE[0, 0, 3]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_indices_are_those_of_numpy(case):
    mod, want = CASES[case]
    capture = tw.capture(TABLE)
    have = scores(lambda s, b, h, q, kv: mod(capture, q, kv))
    if case == "clamped beyond":
        want = TABLE[0, 0, np.maximum(Q - 9, -4)] * 0 + want
    np.testing.assert_allclose(have, np.broadcast_to(want, (1, 5, 7)), rtol=1e-6)


def test_gradients_land_where_the_index_read():
    query, key, value = RNG.standard_normal((3, 1, 2, 6, 8)).astype(np.float32)
    capture = tw.capture(SHORT)
    out, pullback = tw.flex_attention_vjp(
        query, key, value, lambda s, b, h, q, kv: s + capture[kv - q] * 0.1
    )
    moved = SHORT.copy()
    moved[-1] += 0.01
    again = tw.capture(moved)
    other = tw.flex_attention(query, key, value, lambda s, b, h, q, kv: s + again[kv - q] * 0.1)
    gradient = pullback(np.ones_like(out)).captured[0]
    assert gradient[-1] == pytest.approx(float((other - out).sum()) / 0.01, rel=0.05, abs=1e-3)


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (4, IndexError, r"expected an index of -4 to 3 in dimension 0 but got 4"),
        (-5, IndexError, r"expected an index of -4 to 3 in dimension 0 but got -5"),
        (1.5, TypeError, r"expected integers, slices of numbers or \.\.\. .* got float"),
        (True, TypeError, "got True"),
        (None, TypeError, "got None"),
        (np.array([1, 2]), TypeError, "got ndarray"),
        ((0, 0), IndexError, "at most 1 indices of an array of rank 1 but got 2"),
        ((..., ...), IndexError, "one ellipsis"),
    ],
)
def test_bad_indices_are_named(index, error, text):
    capture = tw.capture(SHORT)
    with pytest.raises(error, match=text):
        scores(lambda s, b, h, q, kv: s + capture[index])


def test_slices_of_traced_integers_are_refused():
    capture = tw.capture(SHORT)
    with pytest.raises(TypeError, match="slices of numbers"):
        scores(lambda s, b, h, q, kv: s + tw.sum(capture[q : q + 2]))


def test_texts_index_alike():
    text = tw.parse_mod("score + c[-1] + c[kv - q]", c=SHORT)
    capture = tw.capture(SHORT)
    written = lambda s, b, h, q, kv: s + capture[-1] + capture[kv - q]  # noqa: E731
    np.testing.assert_array_equal(scores(text, 4, 4), scores(written, 4, 4))
    with pytest.raises(ValueError, match="expected an index of -4 to 3 .* column 9"):
        tw.parse_mod("score + c[4]", c=SHORT)


def test_a_capture_is_a_sequence_that_ends():
    capture = tw.capture(TABLE, "table")
    assert len(capture) == 2 and len(capture[0]) == 3
    assert capture.shape == (2, 3, 4) and capture.ndim == 3 and capture.dtype == "f32"
    assert capture[0].shape == (3, 4)
    assert repr(capture) == "capture(f32[2, 3, 4], 'table')"
    assert repr(capture[1]) == "part [3, 4] of capture(f32[2, 3, 4], 'table')"
    assert len(list(capture)) == 2
    with pytest.raises(TypeError, match="has no|expected an array with dimensions"):
        len(tw.capture(np.float32(1)))
    long = tw.capture(np.zeros(1000, np.float32))
    for loop in (list, sum, iter, max):
        with pytest.raises(TypeError, match="at most 512 elements to iterate over but got 1000"):
            loop(long)
    with pytest.raises(TypeError, match="compare its elements"):
        3 in capture  # noqa: B015
    with pytest.raises(TypeError, match="its `array` is what it was made from"):
        np.asarray(capture)


def test_outside_of_mods_captures_read_their_arrays():
    capture, table = tw.capture(SHORT), tw.capture(TABLE)
    assert list(capture) == SHORT.tolist() and sum(capture) == SHORT.sum()
    assert capture[-1] == 13 and table[1, -1, 2] == TABLE[1, -1, 2]
    assert list(table[0, :, 1]) == TABLE[0, :, 1].tolist()
    assert tw.capture(np.float32(3))[()] == 3
    assert (lambda s, b, h, q, kv: s * capture[kv - 3])(2.0, 0, 0, 5, 1) == 24
    with pytest.raises(IndexError, match="expected an index of -4 to 3"):
        capture[4]


def test_no_object_with_indices_iterates_for_ever():
    mask = tw.create_block_mask(lambda b, h, q, kv: q >= kv + b, 3, 1, 8, 8)
    assert len(mask) == 3 and [m.shape for m in mask] == [(1, 1, 8, 8)] * 3
    seen = []

    def mod(s, b, h, q, kv):
        for use in (list, len, lambda x: 3 in x):
            with pytest.raises(TypeError, match="a traced value has no"):
                use(q)
        row = tw.capture(SHORT)[:]
        seen.append((len(row), row.shape))
        return s

    scores(mod)
    assert seen[0] == (4, (4,))


def test_captures_pickle():
    capture = pickle.loads(pickle.dumps(tw.capture(SHORT, "short", differentiable=False)))
    assert capture.name == "short" and not capture._core.differentiable
    assert (scores(lambda s, b, h, q, kv: s + capture[2]) == 12).all()


def test_the_checked_mode_names_index_and_line():
    capture = tw.capture(SHORT, "short")

    def mod(s, b, h, q, kv):
        s = s * 2
        return s + capture[kv - q]  # the line

    line = mod.__code__.co_firstlineno + 2
    query = np.ones((1, 1, 6, 4), np.float32)
    with tw.checked():
        tw.flex_attention(query[:, :, :4], query[:, :, :4], query[:, :, :4], mod)  # -3 to 3
        with pytest.raises(ValueError, match=rf"capture `short`.*test_captures\.py:{line}"):
            tw.flex_attention(query, query, query, mod)
        with pytest.raises(ValueError, match=rf"capture `short`.*test_captures\.py:{line}"):
            tw.create_scores(mod, 1, 1, 6, 6)
        ids = np.zeros(3, np.int32)
        mask = tw.masks.document(ids)
        with pytest.raises(ValueError, match=r"capture `document`.*test_captures\.py"):
            tw.flex_attention(query, query, query, mask_mod=mask)
        with pytest.raises(ValueError, match=r"capture `document`.*test_captures\.py"):
            tw.create_block_mask(mask, 1, 1, 6, 6)


def test_arrays_without_elements_are_not_read():
    empty = tw.capture(np.zeros(0, np.int32), "ids")
    mask = lambda b, h, q, kv: empty[q] == empty[kv]  # noqa: E731
    score = lambda s, b, h, q, kv: s + empty[q]  # noqa: E731
    hidden = lambda s, b, h, q, kv: tw.where(empty[q] == empty[kv], s, -np.inf)  # noqa: E731
    x = np.ones((1, 1, 4, 8), np.float32)
    long = np.ones((1, 1, 600, 8), np.float32)  # long enough that masks become data
    for call in (
        lambda: tw.flex_attention(x, x, x, mask_mod=mask),
        lambda: tw.flex_attention(x, x, x, score),
        lambda: tw.flex_attention(long, long, long, mask_mod=mask),
        lambda: tw.flex_attention(long, long, long, hidden),
        lambda: tw.create_mask(mask, 1, 1, 4, 4),
        lambda: tw.create_block_mask(mask, 1, 1, 4, 4),
        lambda: tw.create_scores(score, 1, 1, 4, 4),
        lambda: tw.masks.document(np.zeros(0, np.int32))(0, 0, 1, 1),
    ):
        with pytest.raises(
            ValueError, match=r"expected capture `(ids|document)` with elements.* i32\[0\]"
        ):
            call()
    assert tw.create_mask(mask, 1, 1, 0, 0).size == 0
    assert tw.flex_attention(x[:, :, :0], x[:, :, :0], x[:, :, :0], score).size == 0
