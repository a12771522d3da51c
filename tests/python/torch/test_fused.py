"""Gradients by torch's own operator for attention of other libraries, which runs no Python code."""

import gc
import weakref

import dense_torch as dense
import pytest
import torch
from torch.utils import checkpoint

import tilewright.torch as twt
from tilewright.torch import _attention, _ops

pytestmark = pytest.mark.skipif(_ops.fused is None, reason="this torch lacks what it needs")

NODE = "ScaledDotProductFusedAttentionOverrideableBackward"
OPERATOR = torch.ops.aten._scaled_dot_product_fused_attention_overrideable


@pytest.fixture
def leaves():
    _attention._known_calls.clear()
    return [dense.normal(1, 2, 6, 8) for _ in range(3)]


def node(out):
    return type(out.grad_fn).__name__


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("wanted", [(0, 1, 2), (0,), (1,), (2,), (0, 2)])
def test_gradients(leaves, learned, masked, wanted):
    table = dense.normal(2)
    table = table if learned else table.detach()

    def score(s, b, h, q, kv):
        return s + table[h] * (kv - q)

    def mask(b, h, q, kv):
        return q >= kv

    leaves = [x if i in wanted else x.detach() for i, x in enumerate(leaves)]
    keep = torch.ones(6, 6, dtype=torch.bool).tril() if masked else None
    want = dense.attention(*leaves, score, mask=keep)[0]
    inputs = [leaves[i] for i in wanted] + [table] * learned
    want_gradients = torch.autograd.grad(want.sin().sum(), inputs)
    for _ in range(4):  # the later ones are like earlier ones
        blocks = twt.create_block_mask(mask, None, None, 6, 6, device="cpu") if masked else None
        out = twt.flex_attention(*leaves, score, blocks)
        gone = weakref.ref(blocks) if masked else None
        del blocks
        gc.collect()
        assert gone is None or gone() is None  # the graph keeps what it needs
        assert node(out).startswith(NODE)
        dense.close(out, want)
        for x, y in zip(torch.autograd.grad(out.sin().sum(), inputs), want_gradients, strict=True):
            dense.close(x, y)


def test_every_call_of_a_kind_saves_the_same():
    """Else checkpoints fail."""
    _attention._known_calls.clear()
    leaves = [dense.normal(1, 2, *shape) for shape in ((5, 8), (6, 8), (6, 4))]
    table = torch.ones(2, dtype=torch.float64)
    saved = []
    for _ in range(4):
        shapes = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda x, to=shapes: to.append(x.shape) or x, lambda x: x
        )
        with hooks:
            twt.flex_attention(*leaves, lambda s, b, h, q, kv: s + table[h])
        saved.append(shapes)
    assert all(shapes == saved[0] for shapes in saved)


@pytest.mark.parametrize("early_stop", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_checkpoints(leaves, masked, early_stop):
    """They end the second forward pass by an error in a hook of a saved tensor."""
    blocks = twt.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 6, 6, device="cpu")

    def attend(*tensors):
        return twt.flex_attention(*tensors, None, blocks if masked else None)

    for _ in range(4):
        want = torch.autograd.grad(attend(*leaves).sin().sum(), leaves)
        with checkpoint.set_checkpoint_early_stop(early_stop):
            out = checkpoint.checkpoint(attend, *leaves, use_reentrant=False)
            assert all(map(torch.equal, torch.autograd.grad(out.sin().sum(), leaves), want))


def test_errors_of_hooks_are_passed_on(leaves):
    def refuse(x):
        raise KeyError("a hook")

    for _ in range(3):
        with torch.autograd.graph.saved_tensors_hooks(refuse, id), pytest.raises(KeyError):
            twt.flex_attention(*leaves)
        twt.flex_attention(*leaves)


def test_saved_tensors_may_be_copies(leaves):
    table = dense.normal(2)
    blocks = twt.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 6, 6, device="cpu")

    def gradients():
        out = twt.flex_attention(*leaves, lambda s, b, h, q, kv: s + table[h] * (kv - q), blocks)
        return torch.autograd.grad(out.sin().sum(), [*leaves, table])

    for _ in range(3):
        want = gradients()
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
            assert all(map(torch.equal, gradients(), want))


def test_changed_captures_are_noticed(leaves):
    table = torch.ones(2, dtype=torch.float64)
    for _ in range(3):
        out = twt.flex_attention(*leaves, lambda s, b, h, q, kv: s + table[h])
        table.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_errors_keep_their_class(leaves):
    query, key, value = leaves
    for _ in range(3):
        with pytest.raises(ValueError, match=r"\[flex_attention\] .*batch size"):
            twt.flex_attention(query, key.expand(3, -1, -1, -1), value.expand(3, -1, -1, -1))
        twt.flex_attention(*leaves)


def test_others_calls_of_the_operator_are_refused(leaves):
    for dropout in (0.0, 0.5, -1e9):
        with pytest.raises(RuntimeError, match="not implemented"):
            OPERATOR(*leaves, None, dropout)


def test_what_needs_more_takes_the_function(leaves):
    tables = [dense.normal(2) for _ in range(2)]
    for _ in range(3):
        for function in (
            lambda: twt.flex_attention(*leaves, dropout=0.5),
            lambda: twt.flex_attention(*leaves, return_aux=twt.AuxRequest(lse=True))[0],
            lambda: twt.flex_attention(
                *leaves, lambda s, b, h, q, kv: s * tables[0][h] + tables[1][h]
            ),
        ):
            out = function()
            assert not node(out).startswith(NODE)
            out.sum().backward()


def test_gradients_that_are_undefined():
    leaves = [dense.normal(1, 1, 5, 4) for _ in range(3)]
    for create_graph in (False, True):
        out = twt.flex_attention(*leaves)
        assert node(out).startswith(NODE)
        nothing = torch._C._functions.UndefinedGrad()(out)
        have = torch.autograd.grad(
            *(nothing, leaves, torch.zeros_like(out)),
            create_graph=create_graph,
            allow_unused=True,
        )
        assert have == (None, None, None)
