"""Calls like earlier ones, which run no Python code, and what distinguishes calls."""

import pathlib
import sys

import dense_torch as dense
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tilewright.torch as twt
from tilewright.torch import _attention, _environment


def scores(table, factor):
    return lambda s, b, h, q, kv: s * factor + table[h] * (kv - q)


def want(query, key, value, table, factor, **options):
    return dense.attention(query, key, value, scores(table, factor), **options)[0]


@pytest.fixture
def inputs():
    _attention._known_calls.clear()
    return [dense.normal(1, 2, 6, 8).detach() for _ in range(3)]


@pytest.fixture
def steps(monkeypatch):
    """Counts calls that looked for the recording of a mod in Python."""
    taken = []
    original = _environment.traced
    monkeypatch.setattr(
        _environment, "traced", lambda *arguments: taken.append(1) or original(*arguments)
    )
    return taken


def test_calls_like_earlier_ones_take_no_step_in_python(inputs, steps):
    for _ in range(3):  # the second finds a recording, which plans the third
        twt.flex_attention(*inputs, scores(torch.ones(2, dtype=torch.float64), 0.5))
    count = len(steps)
    for length in (6, 5):
        table = torch.randn(2, dtype=torch.float64)
        query = inputs[0][:, :, :length]
        out = twt.flex_attention(query, *inputs[1:], scores(table, 0.5))
        assert out.grad_fn is None
        if length == 6:
            dense.close(out, want(*inputs, table, 0.5))
    assert len(steps) == count


def test_what_differs_is_seen(inputs, steps):
    table = torch.randn(2, dtype=torch.float64)
    for _ in range(3):
        for causal in (False, True):
            out = twt.flex_attention(*inputs, scores(table, 0.5), causal=causal)
            keep = torch.ones(6, 6, dtype=torch.bool).tril(0 if causal else 6)
            dense.close(out, want(*inputs, table, 0.5, mask=keep))
    for factor in (0.5, 2.0, 0.5, 3.0):
        dense.close(
            twt.flex_attention(*inputs, scores(table, factor)), want(*inputs, table, factor)
        )
    for scale in (0.25, 0.5, None):
        out = twt.flex_attention(*inputs, scores(table, 0.5), scale=scale)
        dense.close(out, want(*inputs, table, 0.5, scale=scale))
    single = [x.float() for x in inputs]
    out = twt.flex_attention(*single, scores(table.float(), 0.5))
    assert out.dtype == torch.float32
    dense.close(out, want(*inputs, table, 0.5), 1e-5)
    with pytest.raises(ValueError, match="captures"):  # f64 scores of tensors on another device
        twt.flex_attention(*inputs, scores(table.to("meta"), 0.5))


def test_gradients_are_asked_for_call_by_call(inputs, steps):
    table = torch.randn(2, dtype=torch.float64)
    leaves = [x.clone().requires_grad_() for x in inputs]
    learned = table.clone().requires_grad_()
    for _ in range(3):
        assert twt.flex_attention(*inputs, scores(table, 0.5)).grad_fn is None
        assert twt.flex_attention(*leaves, scores(table, 0.5)).grad_fn is not None
        assert twt.flex_attention(*inputs, scores(learned, 0.5)).grad_fn is not None
    count = len(steps)
    expected = want(*leaves, learned, 0.5)
    for operands, mod_table, wanted in (
        (leaves, table, leaves),
        (inputs, learned, [learned]),
        (inputs, table, []),
    ):
        out = twt.flex_attention(*operands, scores(mod_table, 0.5))
        dense.close(out, expected)
        assert (out.grad_fn is not None) == bool(wanted)
        if wanted:
            ours = torch.autograd.grad(out.sum(), wanted)
            theirs = torch.autograd.grad(expected.sum(), wanted, retain_graph=True)
            for a, b in zip(ours, theirs, strict=True):
                dense.close(a, b)
    with torch.no_grad():
        assert twt.flex_attention(*leaves, scores(table, 0.5)).grad_fn is None
    assert len(steps) <= count + 1


def test_modes_and_transforms_see_calls(inputs):
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            names.append(str(function))
            return function(*arguments, **(keywords or {}))

    names = []
    for _ in range(3):
        out = twt.flex_attention(*inputs)
    with Seen():
        twt.flex_attention(*inputs)
    assert any("tilewright.forward" in name for name in names)
    stacked = [torch.stack([x, x]) for x in inputs]
    dense.close(torch.func.vmap(twt.flex_attention)(*stacked)[1], out)
    with torch.autocast("cpu", torch.bfloat16):
        assert twt.flex_attention(*[x.float() for x in inputs]).dtype == torch.bfloat16


def test_block_masks_and_other_operands(inputs):
    masks = [
        twt.create_block_mask(lambda b, h, q, kv, n=n: q - kv >= n, None, None, 6, 6, device="cpu")
        for n in (0, -1, -2)
    ]
    for _ in range(3):
        for n, mask in enumerate(masks):
            out = twt.flex_attention(*inputs, None, mask)
            keep = lambda b, h, q, kv, n=n: q - kv >= -n  # noqa: E731
            dense.close(out, dense.attention(*inputs, mask=keep)[0])
        lengths = torch.tensor([3])
        out = twt.flex_attention(*inputs, kv_lengths=lengths)
        dense.close(out, dense.attention(*inputs, mask=lambda b, h, q, kv: kv < 3)[0])
        out, lse = twt.flex_attention(*inputs, return_aux=twt.AuxRequest(lse=True))
        dense.close(lse.lse, dense.attention(*inputs)[1])


def test_gradients_of_known_calls_are_found_without_python_code(inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    table = torch.ones(2, dtype=torch.float64, requires_grad=True)
    gradient = torch.ones_like(inputs[0])

    def step():
        return twt.flex_attention(*leaves, scores(table, 0.5))

    for _ in range(3):
        torch.autograd.grad(step(), [*leaves, table], gradient)
    taken = set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            taken.add(frame.f_code.co_name)

    package = str(pathlib.Path(twt.__file__).parent)
    sys.setprofile(note)
    try:
        results = torch.autograd.grad(step(), [*leaves, table], gradient)
    finally:
        sys.setprofile(None)
    assert taken == {"flex_attention"}
    expected = torch.autograd.grad(want(*leaves, table, 0.5), [*leaves, table], gradient)
    for ours, theirs in zip(results, expected, strict=True):
        dense.close(ours, theirs)
