"""Issues that users of torch's FlexAttention reported, by number.

docs/reference/torch.md lists every one of them with its test, here or elsewhere.
"""

import logging
import time
import warnings

import dense_torch as dense
import pytest
import torch
from test_attention import causal
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention as flex

import tilewright.torch as twt
from tilewright.torch import _attention, _environment


def check(have, want, inputs, tolerance=1e-5):
    dense.close(have, want, tolerance)
    for x, y in zip(dense.gradients([have], inputs), dense.gradients([want], inputs), strict=True):
        assert x.isfinite().all()
        dense.close(x, y, tolerance)


def tensors(batch, heads, length, dim=8, dtype=torch.float32):
    return [dense.normal(batch, heads, length, dim, dtype=dtype) for _ in range(3)]


def distinct_mods(count):
    """Functions with different code."""
    made = []
    for n in range(count):
        names = {}
        exec(f"def mod(s, b, h, q, kv): return s + (q - kv) * {n} / 64 + {n} * h", names)
        made.append(names["mod"])
    return made


@pytest.mark.parametrize("compiled", [False, True])
def test_many_mods_in_one_process_stay_fused(compiled, forward_calls):
    """166153, vllm 27178: beyond its limit of recompilations torch computes all scores."""
    attend = twt.flex_attention
    if compiled:
        torch._dynamo.reset()
        attend = torch.compile(attend, backend="eager")
    inputs = tensors(1, 2, 24)
    limit = torch._dynamo.config.recompile_limit

    def run():
        with warnings.catch_warnings():
            if not compiled:  # for compiled functions Dynamo itself warns
                warnings.simplefilter("error")
            logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
            for mod in distinct_mods(limit + 4):
                out = attend(*inputs, mod)
                dense.close(out, dense.attention(*inputs, mod)[0], 1e-5)

    assert forward_calls(run) >= limit + 4


def test_lengths_and_mods_of_one_text_share_a_kernel(capfd, monkeypatch):
    """141486, gym 28, gym 76: a kernel for each length and for each new closure."""
    monkeypatch.setenv("TILEWRIGHT_DEBUG_PASSES", "1")  # compiling runs passes, which are logged

    def compiles(length, step):
        options = {"kernel_options": {"BLOCK_M": 64, "BLOCK_N": 64}}  # else by the call's size
        inputs = tensors(1, 2, length)
        out = twt.flex_attention(
            *inputs, lambda s, b, h, q, kv: s + (q - kv) * step, mask_mod=causal, **options
        )
        out.sum().backward()
        return capfd.readouterr().err != ""

    assert compiles(200, 0.25)
    compiles(200, 0.5)  # the number becomes an operand
    assert not any(compiles(201 + 7 * n, 1.0 + n) for n in range(10))


def test_every_backend_runs_the_fused_kernels():
    """182611: the backward of aot_eager is 10 to 30 times slower."""
    inputs = tensors(1, 4, 256, 32)
    functions = {}
    for backend in ("aot_eager", "inductor"):
        compiled = torch.compile(
            lambda q, k, v: twt.flex_attention(q, k, v, causal=True), backend=backend
        )
        functions[backend] = lambda f=compiled: torch.autograd.grad(f(*inputs).sum(), inputs)
        functions[backend]()
    least = dict.fromkeys(functions, float("inf"))
    for _ in range(20):
        for name, function in functions.items():
            start = time.process_time()
            function()
            least[name] = min(least[name], time.process_time() - start)
    assert least["aot_eager"] < 1.2 * least["inductor"], least


@pytest.mark.parametrize("backend", [None, "aot_eager"])
@pytest.mark.parametrize("batch, heads", [(None, None), (1, 4), (2, 1), (None, 4), (2, None)])
def test_masks_broadcast_over_batches_and_heads(batch, heads, backend):
    """172225, 139462: memory beyond the lists is read, or batches above 0 are zero."""

    def mask(b, h, q, kv):
        b = 0 if batch in (None, 1) else b
        h = 0 if heads in (None, 1) else h
        return (q >= kv) & (kv % (b + h + 2) != 1)

    inputs = tensors(2, 4, 24)
    attend = twt.flex_attention
    if backend:
        attend = torch.compile(attend, backend=backend, fullgraph=True)
    for make in (twt.create_block_mask, flex.create_block_mask):
        block_mask = make(mask, batch, heads, 24, 24, "cpu", 8)
        want = dense.attention(*inputs, mask=mask)[0]
        check(attend(*inputs, block_mask=block_mask), want, inputs)


@pytest.mark.parametrize("backend", [None, "inductor"])
@pytest.mark.parametrize("offset", [0, 3, 4])
def test_a_mask_of_three_parts_has_the_gradients_of_its_definition(offset, backend):
    """158212: wrong gradients or NaN where many rows are far from their keys."""
    t, w = 48, 4

    def mask(b, h, q, kv):
        second, third = (t <= q) & (q < 2 * t), 2 * t <= q
        group = (q - offset - t) // w == (kv - offset - t) // w
        keeps = ((q - t) % w != offset) & ((kv - t) % w != offset)
        return (
            ((q < t) & (kv < t) & (q > kv - w))
            | (second & (kv < t) & (kv <= ((q - offset - t) // w) * w + offset))
            | (second & (t <= kv) & (kv < 2 * t) & group & keeps)
            | (third & (kv % t == q % t))
        )

    inputs = tensors(1, 2, 3 * t, 16)
    attend = twt.flex_attention
    if backend:
        attend = torch.compile(attend, backend=backend, fullgraph=True)
    block_mask = twt.create_block_mask(mask, None, None, 3 * t, 3 * t, "cpu", 16)
    check(attend(*inputs, block_mask=block_mask), dense.attention(*inputs, mask=mask)[0], inputs)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_a_length_that_128_does_not_divide_with_both_mods(dtype, tolerance):
    """153799, 136232: NaN in the backward."""
    inputs = tensors(1, 1, 1025, 16, dtype)
    mask = twt.create_block_mask(causal, None, None, 1025, 1025, device="cpu")

    def score(s, b, h, q, kv):
        return s + (kv - q) * 0.01

    out = twt.flex_attention(*inputs, score, mask)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    want = dense.attention(*wide, score, causal)[0]
    dense.close(out, want, tolerance)
    have = torch.autograd.grad(out.mean() * 0.01, inputs)
    for x, y in zip(have, torch.autograd.grad(want.mean() * 0.01, wide), strict=True):
        assert x.isfinite().all()
        dense.close(x * 1e5, y * 1e5, 5 * tolerance)


def test_a_mod_that_reads_the_batch_serves_every_batch():
    """152297, 186775: NaN, or errors, with dynamic shapes."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(twt.flex_attention, backend=counter, dynamic=True, fullgraph=True)
    for batch in (4, 16, 32):
        lengths = torch.randint(1, 12, (batch,))

        def score(s, b, h, q, kv, lengths=lengths):
            return s + b * (q - kv) * 0.01 + lengths[b] * 0.1 * kv

        inputs = tensors(batch, 2, 12)
        check(compiled(*inputs, score), dense.attention(*inputs, score)[0], inputs)
    assert counter.frame_count == 1


@pytest.mark.parametrize("form", ["column", "row"])
def test_a_table_with_a_dimension_of_one(form):
    """146896: an assertion fails in the backward."""
    inputs = tensors(1, 2, 9)
    table = dense.normal(16, 1, dtype=torch.float32)

    def score(s, b, h, q, kv):
        delta = torch.clamp(q - kv, -8, 7) + 8
        return s + (table[:, 0][delta] if form == "column" else table[delta.int()][0])

    def definition(s, b, h, q, kv):
        return s + table[torch.clamp(q - kv, -8, 7) + 8, 0]

    check(
        twt.flex_attention(*inputs, score),
        dense.attention(*inputs, definition)[0],
        [*inputs, table],
    )


@pytest.mark.parametrize("backend", [None, "inductor"])
def test_masks_composed_of_closures_over_several_shapes(backend):
    """178244, transformers 44458: the C++ that Inductor writes does not compile."""

    def both(*masks):
        def mask(b, h, q, kv):
            result = masks[0](b, h, q, kv)
            for other in masks[1:]:
                result = result & other(b, h, q, kv)
            return result

        return mask

    def padding(valid):
        return lambda b, h, q, kv: valid[b, kv]

    def offset(mask, n):
        return lambda b, h, q, kv: mask(b, h, q + n, kv)

    attend = twt.flex_attention
    if backend:
        attend = torch.compile(attend, backend=backend)
    for batch, length, n in ((1, 7, 0), (2, 12, 3), (3, 20, 5)):
        valid = torch.rand(batch, length) < 0.8
        mask = both(offset(causal, n), padding(valid))
        block_mask = twt.create_block_mask(mask, batch, None, length, length, device="cpu")
        inputs = tensors(batch, 2, length)
        want = dense.attention(*inputs, mask=mask)[0]
        check(attend(*inputs, block_mask=block_mask), want, inputs)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_sinks_on_cpus(dtype, tolerance):
    """transformers 41026, 41083: sinks are emulated by lse, rounded, and not on CPUs."""
    inputs = tensors(2, 4, 20, dtype=dtype)
    sinks = dense.normal(4, dtype=torch.float32)
    out = twt.flex_attention(*inputs, causal=True, sinks=sinks)
    wide = [x.detach().double().requires_grad_() for x in (*inputs, sinks)]
    want = dense.attention(*wide[:3], mask=causal, sinks=wide[3])[0]
    dense.close(out, want, tolerance)
    dout = torch.randn_like(out)
    have = torch.autograd.grad(out, (*inputs, sinks), dout)
    for x, y in zip(have, torch.autograd.grad(want, wide, dout.double()), strict=True):
        dense.close(x, y, 4 * tolerance)


def test_head_dimension_72_and_12_heads_over_2():
    """173933, 151359: padded to 128, and groups that are no power of two."""
    query = dense.normal(1, 12, 33, 72, dtype=torch.float32)
    key, value = (dense.normal(1, 2, 33, 72, dtype=torch.float32) for _ in range(2))
    out = twt.flex_attention(query, key, value, causal=True, enable_gqa=True)
    check(out, dense.attention(query, key, value, mask=causal)[0], [query, key, value])
    step = twt.flex_attention(query[:, :, -1:], key, value, enable_gqa=True)  # decoding
    dense.close(step, dense.attention(query[:, :, -1:], key, value)[0], 1e-5)


@pytest.mark.parametrize("with_mod", [False, True])
def test_a_new_scale_records_and_compiles_nothing(capfd, monkeypatch, with_mod):
    monkeypatch.setenv("TILEWRIGHT_DEBUG_PASSES", "1")  # as above
    table = torch.randn(2)
    score = (lambda s, b, h, q, kv: s + table[h] * (q - kv)) if with_mod else None

    def compiles(scale):
        inputs = tensors(1, 2, 40)
        recorded = _environment.counts["recorded"]
        out = twt.flex_attention(*inputs, score, scale=scale)
        check(out, dense.attention(*inputs, score, scale=scale)[0], inputs)
        return capfd.readouterr().err != "" or _environment.counts["recorded"] > recorded

    assert compiles(0.3)
    compiles(0.43)  # the scale becomes an operand
    assert not any(compiles(scale) for scale in (0.3, -0.25, 2, 0.0, 1 / 7))
    # One that comes often, and that no other test has, gets programs of its own, once.
    often = [compiles(0.43) for _ in range(40)]
    assert sum(often) == 1
    assert not compiles(1 / 3)
    assert not any(compiles(scale) for scale in (0.3, 0.43))


def test_scales_that_come_often_take_the_path_of_known_calls(monkeypatch):
    inputs = tensors(1, 2, 24)
    scales = (0.3, 0.5, 0.7)
    for _ in range(20):
        for scale in scales:
            out = twt.flex_attention(*inputs, scale=scale)
            check(out, dense.attention(*inputs, scale=scale)[0], inputs)
    # Python code that every call outside of that path runs.
    monkeypatch.setattr(_attention, "_cast", None)
    monkeypatch.setattr(_attention._scales, "with_operand", None)
    for scale in scales:
        dense.close(
            twt.flex_attention(*inputs, scale=scale), dense.attention(*inputs, scale=scale)[0], 1e-5
        )
    with pytest.raises(TypeError):
        twt.flex_attention(*inputs, scale=0.9)
