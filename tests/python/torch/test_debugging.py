"""Library mods and masks of PyTorch outside of attention: evaluated, pickled, shown, documented."""

import inspect
import pickle

import numpy as np
import pytest
import torch

import tilewright
import tilewright.torch as twt
from tilewright.torch._errors import BadInput

IDS = torch.tensor([[0, 0, 1, 1]], dtype=torch.int32)
MODS = [
    twt.masks.causal(),
    twt.masks.document(IDS) & ~twt.masks.sliding_window(1),
    twt.scores.softcap(2),
]


@pytest.mark.parametrize("mod", MODS, ids=repr)
def test_library_mods_pickle(mod):
    again = pickle.loads(pickle.dumps(mod))
    assert repr(again) == repr(mod) and again.is_mask == mod.is_mask
    x = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    key = "mask_mod" if mod.is_mask else "score_mod"
    outs = [twt.flex_attention(x, x, x, **{key: m}) for m in (mod, again)]
    assert torch.equal(*outs)


def test_library_mods_evaluate():
    assert twt.masks.causal()(0, 0, 2, 1).item() is True
    assert twt.masks.causal()(0, 0, torch.tensor(1), 2).item() is False
    both = MODS[1]
    assert [bool(both(0, 0, q, kv)) for q, kv in ((3, 2), (2, 3), (1, 2))] == [False, True, False]
    assert twt.scores.softcap(2)(1.5, 0, 0, 1, 2).item() == pytest.approx(2 * np.tanh(0.75))
    wide = twt.scores.softcap(2)(torch.tensor(1.5, dtype=torch.float64), 0, 0, 1, 2)
    assert wide.dtype == torch.float64 and wide.item() == pytest.approx(2 * np.tanh(0.75), 1e-12)
    with pytest.raises(NotImplementedError, match=r"\[causal\] expected numbers, or to be called"):
        twt.masks.causal()(0, 0, torch.arange(4), 0)


def test_checked_mode_names_variables_and_lines():
    """Of the mod, whether or not the call is known from before, and of masks."""
    x, table, ids = torch.randn(1, 1, 4, 16), torch.randn(3), torch.zeros(3, dtype=torch.int32)

    def score(s, b, h, i, j):
        return s + table[i]

    def mask(b, h, i, j):
        return ids[i] == ids[j]

    def expect(name, function, mod):
        line = mod.__code__.co_firstlineno + 1
        with pytest.raises(ValueError) as raised:
            function()
        text = str(raised.value)
        assert f"dimension 0 of capture `{name}` is inside its extent" in text
        assert text.endswith(f"{__file__}:{line}")

    checked = {"checked": True}
    expect("table", lambda: twt.flex_attention(x, x, x, score, kernel_options=checked), score)
    for _ in range(3):  # the third call is known from before
        plain = twt.flex_attention(x, x, x, score)
    with tilewright.checked():
        expect("table", lambda: twt.flex_attention(x, x, x, score), score)
        expect("ids", lambda: twt.flex_attention(x, x, x, mask_mod=mask), mask)
        expect("ids", lambda: twt.create_block_mask(mask, None, None, 4, 4, "cpu"), mask)
    assert torch.equal(twt.flex_attention(x, x, x, score), plain)


def test_create_scores():
    slopes = torch.tensor([0.5, 0.25])

    def score(s, b, h, i, j):
        return s + slopes[h] * (j - i)

    have = twt.create_scores(score, 1, 2, 3, 4, device="cpu")
    h, i, j = torch.meshgrid(torch.arange(2), torch.arange(3), torch.arange(4), indexing="ij")
    torch.testing.assert_close(have, (slopes[h] * (j - i))[None])
    scores = torch.full((3, 4), 1.5, dtype=torch.float64)
    have = twt.create_scores(twt.scores.softcap(2), None, None, 3, 4, scores, device="cpu")
    torch.testing.assert_close(have, torch.full((1, 1, 3, 4), 1.5).double().div(2).tanh() * 2)
    with pytest.raises(BadInput, match=r"expected scores that broadcast to \(1, 1, 3, 4\)"):
        twt.create_scores(twt.scores.softcap(2), None, None, 3, 4, torch.zeros(2), device="cpu")


def test_notebooks_show_masks():
    mask = twt.create_block_mask(twt.masks.causal(), None, None, 64, 64, device="cpu")
    assert mask._repr_svg_() == mask.svg() and mask.svg().startswith("<svg")
    assert "BlockMask(shape=(1, 1, 64, 64)" in mask._repr_html_() and "<svg" in mask._repr_html_()


def test_library_functions_have_signatures():
    for library in (twt.masks, twt.scores):
        for name in set(library.__all__) - {"compose"}:  # which takes any two functions
            assert inspect.signature(getattr(library, name)).return_annotation == "Mod", name
    assert list(inspect.signature(twt.scores.compose).parameters) == ["outer", "inner"]
    assert list(inspect.signature(twt.masks.sliding_window).parameters) == ["w"]
