"""torch.compile and torch.export: one graph, any backend, the fused kernels in it."""

import gc

import dense_torch as dense
import pytest
import torch
from test_attention import causal
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention as flex

import tilewright
import tilewright.torch as twt

BACKENDS = ["eager", "aot_eager", "inductor"]


def tensors(length=32, batch=2, heads=4):
    return [dense.normal(batch, heads, length, 8, dtype=torch.float32) for _ in range(3)]


def same(have, want, inputs, tolerance=1e-5):
    dense.close(have, want, tolerance)
    for x, y in zip(dense.gradients([have], inputs), dense.gradients([want], inputs), strict=True):
        dense.close(x, y, tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
def test_captures_through_functions(backend):
    slopes, ids = dense.normal(4, dtype=torch.float32), torch.arange(32) // 9

    def model(q, k, v, slopes, ids, attention):
        def score(s, b, h, i, j):
            return s + torch.sigmoid(slopes)[h] * (j - i)

        def mask(b, h, i, j):
            return (i >= j) & (ids[i] == ids[j])

        return attention(q.sin(), k, v, score, mask).cos()

    def ours(q, k, v, score, mask):
        return twt.flex_attention(q, k, v, score, mask_mod=mask)

    query, key, value = tensors()
    compiled = torch.compile(lambda *x: model(*x, ours), backend=backend, fullgraph=True)
    inputs = [query, key, value, slopes]
    have = compiled(*inputs, ids)
    want = model(*inputs, ids, lambda *x: dense.attention(*x)[0])
    same(have, want, inputs)


def makes_tensors(s, b, h, i, j):
    table = torch.tensor([0.5, -0.5, 0.25, 1.0], device=s.device)
    return s + table[h] * (torch.arange(32, device=s.device)[i] - j)


def listed(b, h, i, j):
    return (torch.tensor([1, 0, 1, 1], device=b.device)[h] > 0) | (i >= j)


@pytest.mark.parametrize("backend", [*BACKENDS, "export", "export not strict"])
def test_mods_that_make_tensors(backend):
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return twt.flex_attention(q, k, v, makes_tensors, mask_mod=listed)

    inputs = tensors()
    if backend.startswith("export"):
        inputs = [x.detach() for x in inputs]
        made = torch.export.export(Model(), tuple(inputs), strict=backend == "export")
        want = dense.attention(*inputs, makes_tensors, listed)[0]
        return dense.close(made.module()(*inputs), want, 1e-5)
    compiled = torch.compile(Model(), backend=backend, fullgraph=True)
    for _ in range(2):
        want = dense.attention(*inputs, makes_tensors, listed)[0]
        same(compiled(*inputs), want, inputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_library_mods(backend):
    slopes, ids = dense.normal(4, dtype=torch.float32), torch.arange(32) // 9
    alibi, softcap = twt.scores.alibi(slopes), twt.scores.softcap(2)
    mask = twt.masks.causal() & twt.masks.document(ids)
    others = ~mask  # made outside: Dynamo in torch 2.11 does not support ~ on objects

    def model(q, k, v):
        both = twt.flex_attention(q, k, v, alibi, mask_mod=mask)
        return both + twt.flex_attention(
            q, k, v, lambda s, *at: softcap(s * 2, *at), mask_mod=others
        )

    inputs = tensors()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    same(compiled(*inputs), model(*inputs), [*inputs, slopes], 1e-6)


def test_library_mods_are_made_outside():
    """A region that makes one is cut there; with fullgraph that is an error that names it."""
    q, k, v = tensors()

    def attend(q, k, v):
        return twt.flex_attention(q, k, v, twt.scores.alibi(4), mask_mod=twt.masks.causal())

    dense.close(torch.compile(attend, backend="eager")(q, k, v), attend(q, k, v), 1e-6)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"\[alibi\] expected to be called outside of a compiled"):
        torch.compile(attend, backend="eager", fullgraph=True)(q, k, v)


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_of_flash_attn(backend):
    """Also with a soft cap, which uncompiled calls take from the library of scores."""
    q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in tensors())

    def attend(q, k, v):
        return twt.flash_attn_func(q, k, v, causal=True, softcap=3.0, window_size=(9, 2))

    compiled = torch.compile(attend, backend=backend, fullgraph=True)
    same(compiled(q, k, v), attend(q, k, v), [q, k, v])


def test_nested_tensors():
    parts = [torch.randn(n, 2, 8, requires_grad=True) for n in (5, 0, 9)]
    nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged).transpose(1, 2)

    def model(x):
        return twt.flex_attention(x, x, x, lambda s, b, h, q, kv: s + (q - kv) / 8, causal=True)

    have = torch.compile(model, backend="aot_eager", fullgraph=True)(nested)
    assert have.shape == nested.shape
    same(have.values(), model(nested).values(), parts, 1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_frame_for_many_lengths(backend):
    counter = CompileCounterWithBackend(backend)

    def model(q, k, v):
        batch, length = q.size(0), q.size(2)

        def score(s, b, h, i, j):
            return s + batch * 0.125

        def mask(b, h, i, j):
            return (i >= j) & (j < (length // 2) * 2 - 1)

        return twt.flex_attention(q, k, v, score, mask_mod=mask)

    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    frames = None
    for length in (16, 24, 41):
        query, key, value = tensors(length, batch=3)
        want = dense.attention(
            *(query, key, value),
            lambda s, *_: s + 3 * 0.125,
            lambda b, h, i, j, n=length: (i >= j) & (j < (n // 2) * 2 - 1),
        )[0]
        same(compiled(query, key, value), want, [query, key, value])
        # Dynamo compiles the first one twice, to make tensors of its numbers.
        frames = frames or counter.frame_count
    assert counter.frame_count == frames


@pytest.mark.parametrize("backend", BACKENDS)
def test_new_block_masks_compile_nothing(backend):
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(
        lambda q, k, v, m: twt.flex_attention(q, k, v, block_mask=m),
        backend=counter,
        fullgraph=True,
    )
    query, key, value = tensors(200)
    for n in (3, 7, 30, 64, 90):
        ids = torch.arange(200) // n

        def mask_mod(b, h, q, kv, ids=ids):
            return (ids[q] == ids[kv]) & (q >= kv)

        mask = twt.create_block_mask(mask_mod, None, None, 200, 200, device="cpu")
        same(
            compiled(query, key, value, mask),
            dense.attention(query, key, value, None, mask_mod)[0],
            [query, key, value],
        )
    assert counter.frame_count <= 2  # the length of the words is dynamic from the second on


@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_of_torch(backend):
    limit = torch.tensor([5, 40], dtype=torch.int32)

    def mask_mod(b, h, q, kv):
        return (q >= kv) & (kv < limit[b])

    mask = flex.create_block_mask(mask_mod, 2, None, 48, 48, device="cpu", BLOCK_SIZE=16)
    compiled = torch.compile(twt.flex_attention, backend=backend, fullgraph=True)
    query, key, value = tensors(48)
    same(
        compiled(query, key, value, None, mask),
        dense.attention(query, key, value, None, mask_mod)[0],
        [query, key, value],
    )


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_lists_for_one_batch_and_head_serve_all(backend):
    """Lists for one batch and head, with a mask_mod that tells batches and heads apart."""

    def mask_mod(b, h, q, kv):
        return (q >= kv) & ((kv + q) % (b + h + 2) != 1)

    counts = torch.tensor([[[1, 2, 3]]], dtype=torch.int32)
    indices = torch.arange(3, dtype=torch.int32).expand(1, 1, 3, 3).contiguous()
    mask = flex.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=16, mask_mod=mask_mod)
    compiled = torch.compile(twt.flex_attention, backend=backend, fullgraph=True)
    query, key, value = tensors(48)
    same(
        compiled(query, key, value, None, mask),
        dense.attention(query, key, value, None, mask_mod)[0],
        [query, key, value],
    )


def test_words_of_masks_that_are_gone():
    """An operator finds a mask by its words while the mask lives, and reads the words
    afterwards."""
    from tilewright.torch import _marker, _mask_words  # noqa: F401

    def mask_mod(b, h, q, kv):
        return (q >= kv) & (kv % 3 != 1)

    query, key, value = tensors(48)
    mask = twt.create_block_mask(mask_mod, None, None, 48, 48, device="cpu")
    assert _mask_words.mask_of(mask.words) is mask
    out = torch.compile(twt.flex_attention, backend="aot_eager", fullgraph=True)(
        query, key, value, None, mask
    )
    words = mask.words
    del mask
    gc.collect()
    assert _mask_words.mask_of(words) is None
    same(out, dense.attention(query, key, value, None, mask_mod)[0], [query, key, value])


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_of_sdpa(backend):
    query, key, value = tensors(48)
    compiled = torch.compile(
        lambda q, k, v: twt.scaled_dot_product_attention(q, k, v, dropout_p=0.5),
        backend=backend,
        fullgraph=True,
    )

    def run():
        torch.manual_seed(5)
        return [compiled(query, key, value) for _ in range(2)]

    first, second = run(), run()
    assert all(map(torch.equal, first, second))
    assert not torch.equal(*first)
    # The backward pass drops the same: the output is linear in the value.
    (gradient,) = torch.autograd.grad(first[0].sum(), value)
    dense.close((gradient * value).sum(), first[0].sum(), 1e-4)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_options_and_results(backend):
    query, key, value = tensors()
    sinks = dense.normal(4, dtype=torch.float32)
    ids = torch.arange(32)[None].expand(2, 32) // 20

    def model(q, k, v, sinks):
        return twt.flex_attention(
            q,
            k,
            v,
            causal=True,
            sinks=sinks,
            segment_ids=ids,
            scale=0.5,
            return_aux=twt.AuxRequest(lse=True, max_scores=True),
        )

    have, aux = torch.compile(model, backend=backend, fullgraph=True)(query, key, value, sinks)
    eager, eager_aux = model(query, key, value, sinks)
    same(have, eager, [query, key, value, sinks], 1e-6)
    dense.close(aux.lse, eager_aux.lse, 1e-6)
    dense.close(aux.max_scores, eager_aux.max_scores, 1e-6)
    assert not aux.max_scores.requires_grad


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slopes = torch.nn.Parameter(torch.randn(4))
            self.register_buffer("ids", torch.arange(16) // 5)

        def forward(self, q, k, v):
            def score(s, b, h, i, j):
                return s + self.slopes[h] * (j - i)

            def mask(b, h, i, j):
                return self.ids[i] == self.ids[j]

            return twt.flex_attention(q, k, v, score, mask_mod=mask)

    model = Model()
    query, key, value = (x.detach() for x in tensors(16))
    with torch.no_grad():
        exported = torch.export.export(model, (query, key, value), strict=strict)
        dense.close(exported.module()(query, key, value), model(query, key, value), 1e-6)
    assert "tilewright.forward" in str(exported.graph)


def test_a_saved_export_returns_aux(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return twt.flex_attention(q, k, v, return_aux=twt.AuxRequest(lse=True))

    query, key, value = (x.detach() for x in tensors(16))
    torch.export.save(torch.export.export(Model(), (query, key, value)), tmp_path / "program.pt2")
    out, aux = torch.export.load(tmp_path / "program.pt2").module()(query, key, value)
    want, want_aux = Model()(query, key, value)
    assert isinstance(aux, twt.AuxOutput) and aux.max_scores is None
    dense.close(out, want, 1e-6)
    dense.close(aux.lse, want_aux.lse, 1e-6)


@pytest.mark.filterwarnings("error::UserWarning")
def test_fake_and_meta_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        mask = twt.create_block_mask(causal, None, None, 16, 16, device="cpu")
        query = torch.empty(2, 4, 16, 8).transpose(1, 2).contiguous().transpose(1, 2)
        out = twt.flex_attention(query, query, query, lambda s, b, h, q, kv: s * 2, causal=True)
        assert out.shape == query.shape
        assert out.stride() == query.stride()
        assert twt.flex_attention(query, query, query, block_mask=mask).shape == query.shape
    meta = torch.empty(2, 4, 16, 8, device="meta", requires_grad=True)
    out = twt.flex_attention(meta, meta, meta, causal=True)
    assert out.device.type == "meta"
    out.sum().backward()
    assert meta.grad.shape == meta.shape


def test_operators_follow_the_rules():
    from tilewright.torch import _sites

    site = _sites.site(_sites.Spec(operands=("sinks",), causal=True))
    query, key, value = (torch.randn(2, 3, 20, 8) for _ in range(3))
    query = query.transpose(1, 2).contiguous().transpose(1, 2)
    sinks = torch.randn(3)
    arguments = (query, key, value, [sinks], 0, site.text)
    torch.library.opcheck(torch.ops.tilewright.forward.default, arguments)
    torch.library.opcheck(torch.ops.tilewright.forward.alone, (*arguments[:-1], site.alone.text))
    out, lse, _ = torch.ops.tilewright.forward.default(*arguments)
    backward, places = site.backward((True,) * 4, True)
    assert places == (0, 1, 2, 3)
    torch.library.opcheck(
        torch.ops.tilewright.backward.default,
        (query, key, value, [sinks, out, lse, out, lse], 0, backward.text),
    )


def test_operators_run_no_python_code(monkeypatch):
    """But for what is new: a site, the types of operands."""
    from tilewright.torch import _mask_words, _ops, _sites

    assert _ops.IN_CPP
    query, key, value = (dense.normal(2, 4, 32, 8, dtype=torch.float32).detach() for _ in range(3))
    sinks = torch.randn(4)
    mask = twt.create_block_mask(lambda b, h, i, j: (i - j).abs() < 9, None, None, 32, 32)
    words = mask.make_words()
    traced = _sites.site(
        _sites.Spec(operands=("sinks", "block_mask"), causal=True, gradient=True, max_scores=True)
    )
    arguments = (query, key, value, [sinks, words], 0)

    def call():
        out, lse, most = torch.ops.tilewright.forward.default(*arguments, traced.text)
        backward, _ = traced.backward((True, True, True, True, False), False)
        others = [sinks, words, out, lse, torch.ones_like(out)]
        gradients = torch.ops.tilewright.backward.default(
            query, key, value, others, 0, backward.text
        )
        return out, lse, most, *gradients

    def refused(*_):
        raise AssertionError

    want = call()
    monkeypatch.setattr(_ops, "_run", refused)
    monkeypatch.setattr(_sites.Site, "results", refused)
    monkeypatch.setattr(_sites.Site, "__call__", refused)
    for got, expected in zip(call(), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert want[2].shape == (2, 4, 32) and len(want) == 7
    assert _mask_words.mask_of(words) is mask


def test_guards_are_those_of_the_caller():
    """None is on this package's own code, but a user's globals and closures still count."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    factor = 2.0

    def attend(x):
        return twt.flex_attention(x, x, x, lambda s, b, h, i, j: s * factor, causal=True)

    x = dense.normal(1, 2, 16, 8, dtype=torch.float32).detach()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, backend=counter, fullgraph=True)
    for value in (2.0, 2.0, 3.0):
        factor = value
        torch.testing.assert_close(compiled(x), attend(x))
    assert counter.frame_count >= 2
    (*_, first) = _debug_get_cache_entry_list(attend.__code__)
    text = str(first.guard_manager)
    assert "factor" in text or "__closure__" in text or "cell" in text
    for ours in ("defaults__", "__import_torch_dot_utils", "_marker'].", "_attention']._cast"):
        assert ours not in text, ours


def test_uncompiled_graphs_are_recorded_once(monkeypatch):
    from tilewright.torch import _mods

    def attend(x, table, n):
        return twt.flex_attention(x, x, x, lambda s, b, h, i, j: s + table[h] * (j - i) * n)

    compiled = torch.compile(attend, backend="eager", fullgraph=True, dynamic=True)
    tables = [torch.randn(4) for _ in range(3)]
    x = dense.normal(1, 4, 32, 8, dtype=torch.float32).detach()
    compiled(x, tables[0], 2)
    record, recorded = _mods.record, []
    monkeypatch.setattr(_mods, "record", lambda *a: recorded.append(a) or record(*a))
    for table, n in zip(tables, (3, 4, 5), strict=True):
        torch.testing.assert_close(compiled(x, table, n), attend(x, table, n))
    assert not recorded
    wide = torch.randn(5)  # another shape
    torch.testing.assert_close(compiled(x, wide, 3), attend(x, wide, 3))
    assert recorded


def test_recordings_belong_to_the_devices_of_what_mods_read():
    from tilewright.torch import _marker

    graph = torch.fx.GraphModule({}, torch.fx.Graph())

    def key(device):
        lifted = [torch.empty(2, device=device)]
        return _marker._key(graph, lifted, True, torch.float32, torch.device("cpu"))

    assert key("cpu") == key("cpu") != key("meta")


def test_errors_of_operators_are_those_of_sites():
    from tilewright.torch import _sites

    query, key = torch.randn(1, 1, 8, 16), torch.randn(1, 1, 8, 32)
    text = _sites.site(_sites.Spec(operands=())).text
    with pytest.raises(RuntimeError, match="same embedding dimension but got E=16 and E=32"):
        torch.ops.tilewright.forward.alone(query, key, key, [], 0, text)


@pytest.mark.parametrize("backend", [None, "aot_eager", "inductor"])
def test_checkpoints(backend, forward_calls):
    import functools

    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    slopes = torch.randn(4)

    def body(x):
        q = x * 1.5
        return twt.flex_attention(
            q, q, q, lambda s, b, h, i, j: s + slopes[h] * (j - i), mask_mod=causal
        ).sin()

    def policy(saves, context, op, *_, **__):
        ours = op is torch.ops.tilewright.forward.default
        return CheckpointPolicy.MUST_SAVE if ours and saves else CheckpointPolicy.PREFER_RECOMPUTE

    def run(saves):
        torch._dynamo.reset()
        options = {}
        if saves is not None:
            options["context_fn"] = functools.partial(
                create_selective_checkpoint_contexts, functools.partial(policy, saves)
            )
        function = lambda x: checkpoint(body, x, use_reentrant=False, **options)  # noqa: E731
        if backend is not None:
            function = torch.compile(function, backend=backend, fullgraph=True)
        x = dense.normal(1, 4, 32, 8, dtype=torch.float32)
        gradients = []
        count = forward_calls(lambda: gradients.extend(torch.autograd.grad(function(x).sum(), x)))
        (gradient,) = gradients
        (want,) = torch.autograd.grad(body(x).sum(), x)
        dense.close(gradient, want, 1e-5)
        return count

    assert run(None) == 2
    assert run(True) == 1
    assert run(False) == 2


def test_graphs_that_pytorch_keeps_on_disk_tell_versions_apart():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    x = torch.zeros(1, 1, 8, 8)
    torch.compile(lambda q: twt.flex_attention(q, q, q, causal=True), backend=backend)(x)
    assert f"'version': '{tilewright.version}'" in graphs[0].code
