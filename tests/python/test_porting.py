"""docs/how-to/port-mods.md: every call equals its formula, and the calls for other libraries'
formulas equal those."""

import pathlib
import re

import numpy as np
import pytest

import tilewright as tw

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "how-to" / "port-mods.md"
HEADS = 4
LENGTH = 36
WIDTH = 6

IDS = np.repeat(np.arange(5), [3, 9, 1, 16, 7]).astype(np.int32)
OFFSETS = np.array([0, 3, 12, 13, 29, 36], np.int32)
FLAGS = np.arange(LENGTH) % 7 == 2
INTERVALS = np.array([[0, 7], [3, 20], [7, 36], [30, 31]], np.int32)
SLOPES = 2.0 ** (-8 * np.arange(1, HEADS + 1) / HEADS)
NUMBERS = dict(p=5, w=4, d=3, width=WIDTH, height=WIDTH, image_len=9, heads=HEADS, length=LENGTH)

CALLS = dict(
    NUMBERS,
    masks=tw.masks,
    scores=tw.scores,
    ids=tw.capture(IDS),
    offsets=tw.capture(OFFSETS),
    flags=tw.capture(FLAGS),
    intervals=tw.capture(INTERVALS),
    negative_slopes=tw.capture(-SLOPES),
    kw=5,
    kh=3,
)
FORMULAS = dict(
    NUMBERS,
    ids=IDS,
    flags=FLAGS,
    intervals=INTERVALS,
    abs=np.abs,
    clip=np.clip,
    cos=np.cos,
    sum=sum,
    range=range,
    tanh=np.tanh,
    where=np.where,
    slope=lambda h: 2.0 ** (-8 * (h + 1) / HEADS),
    kw=5,
    kh=3,
    h=np.arange(HEADS)[:, None, None],
    q=np.arange(LENGTH)[:, None],
    kv=np.arange(LENGTH)[None, :],
)


def rows():
    """(call, [our formula, the notebook's, attention-gym's], [calls for theirs]) of both tables."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells or not re.match(r"`(masks|scores)\.", cells[0]):
            continue
        texts = [cell.strip("`").replace("\\|", "|") for cell in cells]
        found.append((texts[0], texts[1:4], texts[4:6]))
    return found


def of_formula(text, scores):
    values = eval(text, dict(FORMULAS, s=scores, __builtins__={}))
    return np.broadcast_to(values, (1, HEADS, LENGTH, LENGTH))


def of_call(text, q, k):
    """The mask of a call, or the scores that it makes from q k^T: log(softmax) + lse."""
    mod = eval(text, {"__builtins__": {}}, CALLS)
    if text.startswith("masks"):
        return tw.create_mask(mod, 1, HEADS, LENGTH, LENGTH)
    identity = np.broadcast_to(np.eye(LENGTH), (1, HEADS, LENGTH, LENGTH))
    out, lse = tw.flex_attention(q, k, identity, mod, scale=1.0, return_lse=True)
    return np.log(out) + lse[..., None]


def equal(have, want):
    return np.array_equal(have, want) if want.dtype == bool else np.allclose(have, want, atol=1e-9)


@pytest.mark.parametrize("call, formulas, theirs", rows(), ids=lambda value: str(value)[:40])
def test_calls_are_their_formulas(call, formulas, theirs):
    rng = np.random.default_rng(0)
    # Small slopes and scores, so that the logarithm of a probability is accurate.
    q, k = 0.1 * rng.standard_normal((2, 1, HEADS, LENGTH, 4))
    scores = q @ k.swapaxes(-1, -2)
    here = of_formula(formulas[0], scores)
    assert equal(of_call(call, q, k), here)
    for formula, other in zip(formulas[1:], theirs or ["the same"] * 2, strict=True):
        if formula == "none":
            continue
        wanted = here if formula == "the same" else of_formula(formula, scores)
        assert equal(of_call(call if other == "the same" else other, q, k), wanted)
        # A formula listed as the same must be equal, any other must differ.
        assert equal(wanted, here) == (other == "the same")


def test_every_row_is_read():
    assert len(rows()) == PAGE.read_text().count("\n| `masks.") + PAGE.read_text().count(
        "\n| `scores."
    )
    assert len(rows()) >= 17
