"""Mods traced from Python: operators, NumPy functions, captures, refusals."""

import math

import numpy as np
import pytest

import tilewright as tw
from tilewright._mods import as_mod

slopes = tw.capture(np.linspace(0, 1, 8).astype(np.float32), "slopes")
table = tw.capture(np.zeros((8, 15), np.float32), "table")
ids = tw.capture(np.zeros(100, np.int32), "ids")


def score_ir(function):
    return as_mod("test", "score_mod", function, False).ir()


def mask_ir(function):
    return as_mod("test", "mask_mod", function, True).ir()


def operations(text):
    """The names of the instructions of an IR text, in order."""
    lines = [line.split("=", 1)[1].split() for line in text.splitlines() if " = " in line]
    return [line[0] for line in lines]


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        (lambda s, b, h, q, kv: s + q, "add"),
        (lambda s, b, h, q, kv: 1 - s, "sub"),
        (lambda s, b, h, q, kv: np.float32(3) * s, "mul"),
        (lambda s, b, h, q, kv: s / 3, "div"),
        (lambda s, b, h, q, kv: s * (q // 3), "floordiv"),
        (lambda s, b, h, q, kv: s * (q % 3), "floormod"),
        (lambda s, b, h, q, kv: s * (q << b), "shift_left"),
        (lambda s, b, h, q, kv: np.exp(s), "exp"),
        (lambda s, b, h, q, kv: np.maximum(s, 0.0), "max"),
        (lambda s, b, h, q, kv: np.where(q >= kv, s, -np.inf), "select"),
        (lambda s, b, h, q, kv: s.clamp(-1, 1), "max"),
        (lambda s, b, h, q, kv: abs(s), "abs"),
        (lambda s, b, h, q, kv: tw.tanh(s, approx=True), "tanh"),
    ],
)
def test_operators_and_numpy_functions_become_instructions(function, operation):
    assert any(name.startswith(operation) for name in operations(score_ir(function)))


def test_division_of_integers_is_python_s():
    text = score_ir(lambda s, b, h, q, kv: s * (q / 3))
    assert operations(text).index("cast") < operations(text).index("div")


def test_positions_are_i64_and_scores_f32():
    def check(s, b, h, q, kv):
        assert s.dtype == "f32"
        assert {x.dtype for x in (b, h, q, kv)} == {"i64"}
        assert (q - kv).dtype == "i64"
        assert (s * q).dtype == "f32"
        assert (q >= kv).dtype == "bool"
        assert q.to(np.float64).dtype == "f64"
        return s

    score_ir(check)


def test_captures_are_parameters_in_the_order_of_use():
    mod = as_mod(
        "test", "score_mod", lambda s, b, h, q, kv: s * slopes[h] + table[h, q - kv + 7], False
    )
    assert [capture.name for capture in mod.captures()] == ["slopes", "table"]


def test_gathers_chain():
    assert operations(mask_ir(lambda b, h, q, kv: ids[ids[q]] == ids[kv])).count("load") == 3


def test_rows_are_unrolled():
    text = score_ir(lambda s, b, h, q, kv: s + tw.dot(table[h], table[h]) + tw.max(table[h] * 2))
    assert operations(text).count("load") >= 15


def test_captures_of_rank_0_are_numbers():
    scale = tw.capture(np.array(2.0, np.float32), "scale")
    for function in (lambda s, b, h, q, kv: s * scale, lambda s, b, h, q, kv: scale * s):
        assert "load" in operations(score_ir(function))


def test_masks_combine():
    causal = as_mod("test", "mask", lambda b, h, q, kv: q >= kv, True)
    both = tw.and_masks(causal, lambda b, h, q, kv: ids[q] == ids[kv])
    assert "bitwise_and" in operations(both.ir())
    either = tw.or_masks(causal, lambda b, h, q, kv: ids[q] == ids[kv])
    assert "bitwise_or" in operations(either.ir())
    assert operations(tw.or_masks(causal, ~causal).ir()) == ["constant"]
    assert operations((causal & causal).ir())


def test_a_text_is_a_str():
    with pytest.raises(TypeError, match=r"\[parse_mod\] expected text to be a str but got int"):
        tw.parse_mod(3)


def test_a_branch_on_a_traced_value_names_where():
    with pytest.raises(TypeError, match=r"tw\.where"):
        score_ir(lambda s, b, h, q, kv: s if q > kv else s * 2)


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (
            lambda s, b, h, q, kv: None,
            ValueError,
            r"expected score_mod to return a number or a bool but it returns nothing \(at .*test_mods",
        ),
        (
            lambda s, b, h, q, kv: table[h],
            TypeError,
            "score_mod to return .* but it returns a row of an",
        ),
        (
            lambda s, b, h, q, kv: s if q > kv else 0,
            TypeError,
            r"\] score_mod: a traced value has no truth value.*\(at .*test_mods\.py:\d+\)",
        ),
        (
            lambda s, b, h, q, kv: math.exp(s),
            TypeError,
            r"\] score_mod: a traced value has no float value.*\(at .*test_mods\.py:\d+\)",
        ),
        (lambda s, b, h, q, kv: q > kv, ValueError, "expected score_mod to return a number"),
        (lambda s, b, h, q, kv: np.arange(3)[q], TypeError, r"tw\.capture"),
        (lambda s, b, h, q, kv: s + np.arange(3), TypeError, r"tw\.capture"),
        (lambda s, b, h, q, kv: s == np.arange(3), TypeError, r"tw\.capture"),
        (lambda s, b, h, q, kv: s == None, TypeError, "a number but got NoneType"),  # noqa: E711
        (lambda s, b, h, q, kv: s + None, TypeError, "unsupported operand"),
        (lambda s, b, h, q, kv: s + table, TypeError, "2 dimensions: index it"),
        (lambda s, b, h, q, kv: tw.exp(table), TypeError, "2 dimensions: index it"),
        (
            lambda s, b, h, q, kv: (s, s),
            TypeError,
            "score_mod to return a number or a bool but it returns tuple",
        ),
        (lambda s, b, h, q, kv: s + 2**63, ValueError, "64 bits but got 9223372036854775808"),
        (lambda s, b, h, q, kv: np.spacing(s), TypeError, r"np\.spacing"),
        (lambda s, b, h, q, kv: np.add.reduce(s), TypeError, r"np\.add\.reduce"),
        (lambda s, b, h, q, kv: np.concatenate([s, s]), TypeError, r"np\.concatenate"),
        (lambda s, b, h, q, kv: table[h, q, kv], IndexError, "at most 2 indices"),
        (lambda s, b, h, q, kv: s.to(np.complex64), TypeError, "expected dtype of"),
        (lambda s, b, h, q, kv: 1 // 0, ZeroDivisionError, "zero"),
        (lambda s, q: s, TypeError, r"expected score_mod to be a function \(score, b, h"),
        (3, TypeError, "but got int"),
    ],
)
def test_refusals_say_what_to_do(function, error, text):
    with pytest.raises(error, match=text):
        score_ir(function)


def test_a_capture_of_a_tracer_is_refused():
    with pytest.raises(TypeError, match="use it as it is"):
        score_ir(lambda s, b, h, q, kv: s + tw.capture(q)[0])


def test_a_scalar_outlives_its_trace_without_harm():
    kept = []

    def keep(s, b, h, q, kv):
        kept.append(q)
        return s

    score_ir(keep)
    with pytest.raises(ValueError, match="inside a kernel while it is traced"):
        kept[0] + 1
    with pytest.raises(ValueError, match="of another trace"):
        score_ir(lambda s, b, h, q, kv: s + kept[0])


def test_library_objects_are_mods_and_functions():
    causal = tw.masks.causal()
    assert causal.name == "causal"
    assert mask_ir(lambda b, h, q, kv: causal(b, h, q, kv)) == mask_ir(lambda b, h, q, kv: q >= kv)
    window = causal & tw.masks.sliding_window(np.int64(4))
    assert operations(window.ir())
    assert [c.name for c in tw.masks.document(np.zeros(8, np.int32)).captures()] == ["document"]
    alibi = tw.scores.alibi(np.ones(4, np.float32))
    assert len(tw.scores.compose(tw.scores.softcap(20), alibi).captures()) == 1
    assert tw.scores.alibi(heads=8).captures() == []


def elements(function):
    return tw.create_mask(function, 1, 1, 9, 11)[0, 0]


Q, KV = np.ogrid[:9, :11]


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda b, h, q, kv: q**2 > kv * 5, Q**2 > KV * 5),
        (lambda b, h, q, kv: (q**0 | 2) == kv, (Q**0 | 2) == KV),
        (lambda b, h, q, kv: np.power(q, 2) == kv, Q**2 == KV),
        (lambda b, h, q, kv: pow(2, q) > kv, 2**Q > KV),
        (lambda b, h, q, kv: np.logical_and(q, kv > 2), (Q != 0) & (KV > 2)),
        (lambda b, h, q, kv: np.logical_not(q) | (kv > 2), (Q == 0) | (KV > 2)),
        (
            lambda b, h, q, kv: tw.clamp(q, min=2) == tw.clamp(kv, None, 5),
            Q.clip(2) == KV.clip(0, 5),
        ),
        (lambda b, h, q, kv: q.to("f32") * 0.5 > kv.to("i32"), Q * 0.5 > KV),
    ],
)
def test_numpy_and_python_operators(function, want):
    assert np.array_equal(elements(function), want)


def test_library_objects_combine_with_functions():
    def odd(b, h, q, kv):
        return (q + kv) % 2 == 1

    causal = tw.masks.causal()
    x, y = Q >= KV, (Q + KV) % 2 == 1
    assert np.array_equal(elements(causal & odd), x & y)
    assert np.array_equal(elements(odd | ~causal), ~x | y)
    assert np.array_equal(elements(odd ^ causal), x ^ y)
    assert elements(tw.and_masks()).all() and not elements(tw.or_masks()).any()
    with pytest.raises(TypeError, match="unsupported operand"):
        causal & 3
    with pytest.raises(TypeError, match="function"):
        causal & (lambda q: q)


@pytest.mark.parametrize("mask", [tw.masks.chunked(3), tw.parse_mod("chunked(3)")])
def test_chunks_are_causal_and_see_no_other_chunk(mask):
    assert np.array_equal(elements(mask), (Q >= KV) & (Q // 3 == KV // 3))


def test_library_arguments_by_the_names_of_the_definition():
    slopes = np.ones(4, np.float32)
    assert tw.scores.alibi(slopes_or_heads=8).captures() == []
    assert len(tw.scores.alibi(slopes_or_heads=slopes).captures()) == 1
    assert len(tw.masks.prefix_lm(p=np.ones(2, np.int32)).captures()) == 1
    with pytest.raises(TypeError, match=r"expected sliding_window\(w: int\) but got .*\(3.5\)"):
        tw.masks.sliding_window(3.5)
    with pytest.raises(
        TypeError, match=r"expected document\(ids: array\) but got document\(list\)"
    ):
        tw.masks.document([1, 2])


def test_text_and_functions_give_the_same_program():
    text = tw.parse_mod("score + slopes[h] * (kv - q)", slopes=slopes.array)
    written = score_ir(lambda s, b, h, q, kv: s + slopes[h] * (kv - q))
    assert operations(text.ir()) == operations(written)
    assert sorted(operations(tw.parse_mod("score * (q / 3)").ir())) == sorted(
        operations(score_ir(lambda s, b, h, q, kv: s * (q / 3)))
    )
    assert tw.parse_mod("causal & sliding_window(16)").is_mask
    with pytest.raises(ValueError, match="column"):
        tw.parse_mod("score + * 2")
    with pytest.raises(ValueError, match="expected kind"):
        tw.parse_mod("score", kind="both")
