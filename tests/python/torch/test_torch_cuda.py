"""tilewright.torch on a GPU: torch's stream, allocator and devices; warm calls do not wait."""

import pathlib
import sys

import dense_torch as dense
import pytest
import torch
from test_transforms import check_scaled_steps
from torch.nn.attention import flex_attention as flex

import tilewright.torch as twt

sys.path.insert(0, str(pathlib.Path(__file__, "../../../../examples/custom_op").resolve()))

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT RUN: needs a GPU")


def causal(b, h, q, kv):
    return q >= kv


def tensors(length=512, dtype=torch.bfloat16, heads=4, head_dim=64, device="cuda"):
    return [
        torch.randn(2, heads, length, head_dim, dtype=dtype, device=device).requires_grad_()
        for _ in range(3)
    ]


def captured_graph(step, warmups=0):
    """A CUDA graph of a step, and what the step returned while it was captured."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(warmups):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result


def waits_not(step):
    """Runs a step a few times; in the last run the host must not wait for the GPU."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(500_000_000)
        done = torch.cuda.Event()
        step()
        done.record()
        assert not done.query()  # the host is ahead of the GPU
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


def all_close(have, want, tolerance):
    for x, y in zip(have, want, strict=True):
        dense.close(x.cpu(), y.cpu(), tolerance)


def check(attention, inputs, captured, want, tolerance=2e-2):
    """Checks out and gradients against the definition in f64 on the CPU."""
    out = attention(*inputs)
    wide = [x.detach().double().cpu().requires_grad_() for x in (*inputs, *captured)]
    exact = want(*wide)
    dense.close(out.cpu(), exact, tolerance)
    dout = torch.randn_like(out)
    have = torch.autograd.grad(out, (*inputs, *captured), dout)
    for x, y in zip(have, torch.autograd.grad(exact, wide, dout.double().cpu()), strict=True):
        assert x.device.type == "cuda"
        dense.close(x.cpu(), y, 2 * tolerance)


@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.bfloat16, 2e-2), (torch.float16, 3e-3), (torch.float32, 1e-4)]
)
def test_causal(dtype, tolerance):
    check(
        lambda q, k, v: twt.flex_attention(q, k, v, causal=True),
        tensors(dtype=dtype),
        [],
        lambda q, k, v: dense.attention(q, k, v, mask=causal)[0],
        tolerance,
    )


@pytest.mark.parametrize("shape", [(1, 4, 512, 64), (2, 1, 512, 64), (1, 1, 512, 64)])
def test_strides_of_zero(shape):
    """Keys and values that are expanded along the batch or along heads are read in their places."""
    query, key, value = tensors()
    key, value = (torch.randn(shape, dtype=x.dtype, device="cuda") for x in (key, value))
    leaves = [query, key.requires_grad_(), value.requires_grad_()]

    def expanded(q, k, v):
        return q, k.expand(q.shape), v.expand(q.shape)

    check(
        lambda *x: twt.flex_attention(*expanded(*x), causal=True),
        leaves,
        [],
        lambda *x: dense.attention(*expanded(*x), mask=causal)[0],
    )
    check(
        lambda *x: twt.scaled_dot_product_attention(*x, is_causal=True),
        leaves,
        [],
        lambda *x: dense.attention(*expanded(*x), mask=causal)[0],
    )


@pytest.mark.parametrize("create_graph", [False, True])
def test_second_derivatives_are_refused(create_graph):
    inputs = tensors()
    out = twt.flex_attention(*inputs, causal=True)
    gradients = torch.autograd.grad(out.sum(), inputs, create_graph=create_graph)
    if create_graph:
        with pytest.raises(NotImplementedError, match="second"):
            gradients[0].sum().backward()
    else:
        assert not any(x.requires_grad for x in gradients)


def test_mixed_precision_training():
    check_scaled_steps("cuda")


def test_mods_and_captured_gradients():
    slopes = torch.rand(4, device="cuda").requires_grad_()
    ids = torch.arange(512, device="cuda") // 100

    def ours(q, k, v):
        return twt.flex_attention(
            *(q, k, v),
            lambda s, b, h, i, j: 5 * torch.tanh(s / 5) + slopes[h] * (j - i) * 0.01,
            mask_mod=lambda b, h, i, j: (i >= j) & (ids[i] == ids[j]),
        )

    own = ids.cpu()

    def want(q, k, v, slopes):
        return dense.attention(
            *(q, k, v),
            lambda s, b, h, i, j: 5 * torch.tanh(s / 5) + slopes[h] * (j - i) * 0.01,
            lambda b, h, i, j: (i >= j) & (own[i] == own[j]),
        )[0]

    check(ours, tensors(), [slopes], want)


def test_mods_that_make_tensors():
    """They are copied to the GPU once, and not while a graph is captured."""

    def score(s, b, h, q, kv):
        table = torch.tensor([0.5, -0.5, 0.25, 1.0], device=s.device)
        return s + table[h] * (torch.arange(512, device=s.device)[q] - kv) * 0.01

    inputs = tensors()
    check(
        lambda *x: twt.flex_attention(*x, score),
        inputs,
        [],
        lambda *x: dense.attention(*x, score)[0],
    )
    waits_not(lambda: twt.flex_attention(*inputs, score))
    graph, out = captured_graph(torch.no_grad()(lambda: twt.flex_attention(*inputs, score)))
    graph.replay()
    assert torch.equal(out, twt.flex_attention(*inputs, score))
    compiled = torch.compile(lambda *x: twt.flex_attention(*x, score), fullgraph=True)
    dense.close(compiled(*inputs).cpu(), out.cpu(), 2e-2)


@pytest.mark.parametrize("whose", ["ours", "torch"])
def test_block_masks(whose):
    from torch.nn.attention import flex_attention as flex

    ids = torch.arange(512, device="cuda") // 100

    def document(b, h, q, kv):
        return (q >= kv) & (ids[q] == ids[kv])

    create = (twt if whose == "ours" else flex).create_block_mask
    mask = create(document, None, None, 512, 512, device="cuda")
    own = ids.cpu()
    check(
        lambda q, k, v: twt.flex_attention(q, k, v, block_mask=mask),
        tensors(),
        [],
        lambda q, k, v: dense.attention(
            q, k, v, mask=lambda b, h, i, j: (i >= j) & (own[i] == own[j])
        )[0],
    )


def test_streams():
    """Work is ordered with torch's current stream: after what precedes it, before what follows."""
    query, key, value = tensors(2048)
    want = twt.flex_attention(query, key, value)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    later = torch.zeros_like(query)
    with torch.cuda.stream(side), torch.no_grad():
        torch.cuda._sleep(50_000_000)
        later.copy_(query)
        out = twt.flex_attention(later, key, value)
    side.synchronize()
    assert torch.equal(out, want)


def test_nothing_waits_in_a_warm_call():
    query, key, value = tensors(1024)
    mask = twt.create_block_mask(causal, None, None, 1024, 1024, device="cuda")

    def step():
        out = twt.flex_attention(
            query, key, value, lambda s, b, h, q, kv: s + (q - kv) * 0.01, block_mask=mask
        )
        return torch.autograd.grad(out, (query, key, value), out.detach())

    waits_not(step)


def test_nothing_waits_for_lists_and_starts():
    """torch's lists of blocks and the starts of packed sequences are read once."""
    query, key, value = tensors(1024)
    ids = torch.arange(1024, device="cuda") // 300
    mask = flex.create_block_mask(
        lambda b, h, q, kv: (q >= kv) & (ids[q] == ids[kv]), None, None, 1024, 1024, "cuda"
    )

    def with_lists():
        out = twt.flex_attention(query, key, value, block_mask=mask)
        return torch.autograd.grad(out, (query, key, value), out.detach())

    waits_not(with_lists)
    packed = [x[:1] for x in (query, key, value)]
    starts = torch.tensor([0, 300, 1024], dtype=torch.int32, device="cuda")

    def with_starts():
        out = twt.flex_attention(*packed, causal=True, cu_seqlens=starts)
        return out, torch.autograd.grad(out, (query, key, value), out.detach())

    waits_not(with_starts)
    before = with_starts()[0]
    starts[1] = 700
    after = with_starts()[0]
    want = twt.flex_attention(*packed, causal=True, cu_seqlens=starts.cpu())
    assert torch.equal(after, want)
    assert not torch.equal(before, after)


def test_memory_is_torchs():
    query, key, value = tensors(2048)
    step = lambda: twt.flex_attention(query, key, value, causal=True).sum().backward()  # noqa: E731
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    assert abs(torch.cuda.mem_get_info()[0] - free) < 64 << 20


def test_calls_are_captured_in_a_cuda_graph():
    query, key, value = (x.detach() for x in tensors())
    attention = lambda: twt.flex_attention(query, key, value, causal=True)  # noqa: E731
    graph, out = captured_graph(attention, warmups=3)
    query.copy_(torch.randn_like(query))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, attention())


@pytest.mark.parametrize("after_compiling", [False, True])
def test_block_masks_made_in_a_capture(after_compiling):
    query, key, value = (x.detach() for x in tensors())
    if after_compiling:  # from here on masks have words
        torch.compile(twt.flex_attention, backend="eager")(query, key, value)
    _, mask = captured_graph(
        lambda: twt.create_block_mask(causal, None, None, 512, 512, device="cuda")
    )
    out = twt.flex_attention(query, key, value, block_mask=mask)
    assert torch.equal(out, twt.flex_attention(query, key, value, mask_mod=causal))


def test_lists_of_block_masks_made_in_a_capture():
    """As torch's tests do it: a GPU makes them, since nothing can be copied to it."""

    def step():
        made = [
            flex.create_block_mask(mod, None, None, 512, 300)
            for mod in (causal, twt.masks.causal())
        ]
        return made, flex.create_mask(causal, 1, 1, 512, 300), made[0].to_dense()

    with twt.install():
        graph, (masks, dense_mask, blocks) = captured_graph(step)
    graph.replay()
    whole = twt.create_block_mask(causal, None, None, 512, 300)
    assert torch.equal(dense_mask, whole.elements())
    assert torch.equal(blocks, whole.to_dense())
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "q_num_blocks"):
        assert torch.equal(getattr(masks[0], name), getattr(whole, name))
    assert masks[1].kv_num_blocks.tolist() == [[[3] * 4]]  # the mod decides in every block
    query, key, value = (x.detach() for x in tensors())
    want = twt.flex_attention(query, key[:, :, :300], value[:, :, :300], causal=True)
    for mask in masks:
        have = twt.flex_attention(query, key[:, :, :300], value[:, :, :300], block_mask=mask)
        torch.testing.assert_close(have, want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("library", [False, True])
def test_block_masks_made_and_used_in_a_capture(library):
    """They are mask mods there: the host could not send what it made to the GPU."""
    inputs = tensors()
    ids = torch.arange(512, device="cuda", dtype=torch.int32) // 100

    def step():
        made = (
            [twt.masks.causal(), twt.masks.document(ids)]
            if library
            else [causal, lambda b, h, q, kv: ids[q] == ids[kv]]
        )
        masks = [twt.create_block_mask(mod, None, None, 512, 512) for mod in made]
        out = twt.flex_attention(*inputs, block_mask=masks[0])
        other = twt.flex_attention(*inputs, block_mask=masks[1], mask_mod=made[0])
        grads = torch.autograd.grad(out.float().square().sum(), inputs)
        return out.detach(), other.detach(), *grads  # a graph of another stream cannot be captured

    want = step()
    graph, have = captured_graph(step, warmups=2)
    graph.replay()
    torch.cuda.synchronize()
    for x, y in zip(have, want, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)


def test_block_masks_of_gpu_tensors_made_in_a_capture():
    """Their tensors are read again by each replay."""
    query, key, value = (x.detach() for x in tensors())
    ids = torch.randint(0, 4, (512,), device="cuda", dtype=torch.int32).sort().values

    def document(b, h, q, kv):
        return ids[q] == ids[kv]

    def step():
        mask = twt.create_block_mask(document, None, None, 512, 512, device="cuda")
        return mask, twt.flex_attention(query, key, value, block_mask=mask, mask_mod=causal)

    for _ in range(2):  # what is compiled and allocated once
        twt.flex_attention(query, key, value, mask_mod=twt.and_masks(document, causal))
        torch.nn.attention.flex_attention.create_block_mask(document, 1, 1, 512, 512, "cuda")
    graph, (mask, out) = captured_graph(step)
    ids.copy_(torch.randint(0, 9, (512,), device="cuda", dtype=torch.int32).sort().values)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, step()[1], rtol=2e-2, atol=2e-2)
    later = twt.flex_attention(query, key, value, block_mask=mask)
    want = twt.flex_attention(query, key, value, mask_mod=document)
    torch.testing.assert_close(later, want, rtol=2e-2, atol=2e-2)


def test_graph_of_both_passes():
    query, key, value = tensors()
    slopes = torch.rand(4, device="cuda", requires_grad=True)

    def step():
        out = twt.flex_attention(
            query, key, value, lambda s, b, h, q, kv: s + slopes[h] * (kv - q), causal=True
        )
        return torch.autograd.grad(out.float().square().sum(), (query, key, value, slopes))

    graph, captured = captured_graph(step, warmups=3)
    with torch.no_grad():
        query.copy_(torch.randn_like(query))
    graph.replay()
    for have, want in zip(captured, step(), strict=True):
        torch.testing.assert_close(have, want)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(mode):
    slopes = torch.rand(4, device="cuda")
    compiled = torch.compile(
        lambda q, k, v, s: twt.flex_attention(
            q * 2, k, v, lambda x, b, h, i, j: x + s[h] * (j - i), causal=True
        ).sin(),
        mode=mode,
        fullgraph=True,
    )
    for _ in range(4):
        query, key, value = tensors()
        have = compiled(query, key, value, slopes)
        want = twt.flex_attention(
            query * 2, key, value, lambda x, b, h, i, j: x + slopes[h] * (j - i), causal=True
        ).sin()
        dense.close(have.cpu(), want.cpu(), 1e-2)
        inputs = (query, key, value)
        all_close(
            torch.autograd.grad(have.sum(), inputs), torch.autograd.grad(want.sum(), inputs), 2e-2
        )


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("form", ["exact", "lists"])
def test_compile_with_masks(mode, form):
    """The next call may use another mask of the same size, also when graphs are replayed."""
    compiled = torch.compile(
        lambda q, k, v, m: twt.flex_attention(q * 2, k, v, block_mask=m).sin(),
        mode=mode,
        fullgraph=True,
    )
    make = twt.create_block_mask if form == "exact" else flex.create_block_mask
    for n in (300, 200, 100, 50, 300):
        ids = torch.arange(512, device="cuda") // n
        mask = make(
            lambda b, h, q, kv, ids=ids: (q >= kv) & (ids[q] == ids[kv]),
            *(None, None, 512, 512, "cuda"),
        )
        query, key, value = tensors()

        def definition(q, k, v, n=n):
            return dense.attention(
                *(q * 2, k, v), mask=lambda b, h, i, j: (i >= j) & (i // n == j // n)
            )[0].sin()

        check(
            lambda q, k, v, mask=mask: compiled(q, k, v, mask), [query, key, value], [], definition
        )


def test_dropout_of_sdpa_in_a_graph():
    query, key, value = tensors()
    compiled = torch.compile(
        lambda q, k, v: twt.scaled_dot_product_attention(q, k, v, dropout_p=0.5),
        mode="reduce-overhead",
        fullgraph=True,
    )
    first = [compiled(query, key, value).detach().clone() for _ in range(4)]
    assert not any(torch.equal(first[i], first[j]) for i in range(4) for j in range(i))


def test_batched_gradients():
    """Gradients of GPU tensors are computed in another thread than vmap's."""
    inputs = [x.double().detach().requires_grad_() for x in tensors(6, heads=1, head_dim=4)]
    assert torch.autograd.gradcheck(
        lambda *x: twt.scaled_dot_product_attention(*x), inputs, check_batched_grad=True
    )


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
def test_only_wanted_gradients(wanted):
    inputs = [x.detach() for x in tensors()]
    for i in wanted:
        inputs[i].requires_grad_()
    out = twt.flex_attention(*inputs, causal=True)
    dout = torch.randn_like(out)
    own = [inputs[i] for i in wanted]
    have = torch.autograd.grad(out, own, dout)
    wide = [x.detach().double().cpu().requires_grad_() for x in inputs]
    exact = torch.autograd.grad(dense.attention(*wide, mask=causal)[0], wide, dout.double().cpu())
    for i, x in zip(wanted, have, strict=True):
        dense.close(x.cpu(), exact[i], 4e-2)


@pytest.mark.parametrize("is_causal", [False, True])
def test_torchs_flash_attention(is_causal):
    from torch.nn import attention

    twt.register_flash_attention()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    attention.activate_flash_attention_impl("TILEWRIGHT")
    try:
        with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
            check(
                lambda q, k, v: sdpa(q, k, v, is_causal=is_causal),
                tensors(),
                [],
                lambda q, k, v: dense.attention(q, k, v, mask=causal if is_causal else None)[0],
            )
    finally:
        attention.restore_flash_attention_impl()


def test_norms():
    x = torch.randn(64, 1024, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    weight = torch.randn(1024, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    have = twt.rms_norm(x, weight)
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    want = torch.nn.functional.rms_norm(wide[0], (1024,), wide[1], 1e-5)
    dense.close(have.cpu(), want.cpu(), 1e-2)
    all_close(
        torch.autograd.grad(have.sum(), (x, weight)), torch.autograd.grad(want.sum(), wide), 2e-2
    )


def test_tensors_of_both_kinds_of_memory():
    query, key, value = tensors()
    with pytest.raises(ValueError, match="same device type"):
        twt.flex_attention(query, key.cpu(), value)
    table = torch.rand(4)
    with pytest.raises(ValueError, match="score_mod captures"):
        twt.flex_attention(query, key, value, lambda s, b, h, q, kv: s + table[h])


def exact_norm(x, weight, dy):
    from rms_norm import reference, reference_gradients

    x, weight, dy = (a.detach().cpu().double().numpy() for a in (x, weight, dy))
    return reference(x, weight, 1e-3)[0], *reference_gradients(dy, x, weight, 1e-3)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("dtype", "bound"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)],
)
def test_cuda_kernels_of_users(dtype, bound, compiled):
    from rms_norm import make_rms_norm

    op = make_rms_norm(__file__)  # on a GPU no library is needed
    norm = lambda x, w: op(x, w, eps=1e-3)[0]  # noqa: E731
    if compiled:
        norm = torch.compile(norm, fullgraph=True)
    for rows, columns in ((1, 1), (37, 100), (300, 2048)):
        x, dy = torch.randn(2, rows, columns, device="cuda", dtype=dtype)
        weight = torch.randn(columns, device="cuda", dtype=dtype)
        given = x.requires_grad_(), weight.requires_grad_()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = norm(*given)
            gradients = torch.autograd.grad(y, given, dy)
        torch.cuda.current_stream().wait_stream(stream)
        for have, want in zip((y, *gradients), exact_norm(*given, dy), strict=True):
            want = torch.as_tensor(want)
            error = (have.detach().cpu().double() - want).abs().max()
            # With one column, the terms of a gradient cancel except for eps.
            assert error <= bound * max(1, want.abs().max()), (rows, columns, error)


def test_cuda_kernels_in_graphs_and_batches():
    from rms_norm import make_rms_norm, rms_norm_backward

    op = make_rms_norm(__file__)
    x, dy = torch.randn(2, 64, 96, device="cuda")
    weight = torch.randn(96, device="cuda")
    y, rstd = op(x, weight)
    want = rms_norm_backward(dy, x, weight, rstd)
    graph, have = captured_graph(
        lambda: (op(x, weight)[0], *rms_norm_backward(dy, x, weight, rstd))
    )
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(have, (y, *want), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    xs = torch.stack([x, 2 * x, -x])
    ys = torch.func.vmap(op, in_dims=(0, None))(xs, weight)[0]
    for i in range(3):
        torch.testing.assert_close(ys[i], op(xs[i], weight)[0], rtol=0, atol=0)
    with pytest.raises(ValueError, match="expected `weight` on cuda:0, where `x` is, but it is on"):
        op(x, weight.cpu())
