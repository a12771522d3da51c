"""flex_attention against its definition, forward and backward."""

import dense_torch as dense
import pytest
import torch

import tilewright.torch as twt


def check(query, key, value, *, captured=(), expected=None, tolerance=1e-12, **options):
    """Checks out, lse, max_scores and all gradients against the definition."""
    expected = expected or {}
    out, aux = twt.flex_attention(
        *(query, key, value), return_aux=twt.AuxRequest(lse=True, max_scores=True), **options
    )
    want = dense.attention(query, key, value, **expected)
    for have, right in zip((out, aux.lse, aux.max_scores), want, strict=True):
        dense.close(have, right, tolerance)
    inputs = [query, key, value, *captured]
    for have, right in zip(
        dense.gradients((out, aux.lse), inputs), dense.gradients(want[:2], inputs), strict=True
    ):
        dense.close(have, right, tolerance)
    return out, aux


def causal(b, h, q, kv):
    return q >= kv


@pytest.mark.parametrize("lengths", [(37, 29), (1, 130), (64, 1), (130, 257)])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (3, 1)])
def test_shapes(lengths, heads):
    query = dense.normal(2, heads[0], lengths[0], 8)
    key, value = dense.normal(2, heads[1], lengths[1], 8), dense.normal(2, heads[1], lengths[1], 6)
    check(query, key, value, enable_gqa=True)


@pytest.mark.parametrize("dims", [(72, 40), (1, 1), (16, 128)])
def test_head_dimensions(dims):
    key = dense.normal(1, 2, 33, dims[0])
    check(dense.normal(1, 2, 21, dims[0]), key, dense.normal(1, 2, 33, dims[1]))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (3, 1, 0, 2)])
def test_strides(order):
    inverse = [order.index(d) for d in range(4)]

    def strided(*shape):
        x = torch.randn([shape[d] for d in order], dtype=torch.float64).permute(inverse)
        assert x.shape == shape
        return x.requires_grad_()

    query, key, value = strided(2, 3, 20, 8), strided(2, 3, 30, 8), strided(2, 3, 30, 4)
    for _ in range(4):  # a recording repeats the first call
        out, _ = check(query, key, value, causal=True, expected={"mask": causal})
    by_stride = sorted(range(3), key=lambda d: query.stride(d))
    assert sorted(range(3), key=lambda d: out.stride(d)) == by_stride
    assert out.stride(3) == 1
    gradient = torch.autograd.grad(twt.flex_attention(query, key, value).sum(), query)[0]
    assert sorted(range(3), key=lambda d: gradient.stride(d)) == by_stride


def test_gaps_and_broadcasts():
    query = torch.randn(2, 3, 40, 16, dtype=torch.float64)[:, :, ::2, 1:9]
    key = torch.randn(1, 3, 30, 8, dtype=torch.float64).expand(2, 3, 30, 8)
    value = torch.randn(2, 1, 30, 8, dtype=torch.float64).expand(2, 3, 30, 8)
    check(*(x.detach().requires_grad_() for x in (query, key, value)))


@pytest.mark.parametrize(
    "dtype, tolerance",
    [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)],
)
def test_dtypes(dtype, tolerance):
    query, key, value = (dense.normal(2, 2, 50, 16, dtype=dtype) for _ in range(3))
    out, lse = twt.flex_attention(query, key, value, causal=True, return_lse=True)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    wide = [x.detach().double().requires_grad_() for x in (query, key, value)]
    want, want_lse, _ = dense.attention(*wide, mask=causal)
    dense.close(out, want, tolerance)
    dense.close(lse, want_lse, 1e-5)
    given = torch.randn_like(out)
    have = torch.autograd.grad(out, (query, key, value), given)
    for x, y in zip(have, torch.autograd.grad(want, wide, given.double()), strict=True):
        assert x.dtype == dtype
        dense.close(x, y, 2 * tolerance)


def test_any_scale_is_taken():
    tensors = [dense.normal(1, 2, 10, 4) for _ in range(3)]
    check(*tensors, scale=0.3, expected={"scale": 0.3})
    check(*tensors, scale=0, expected={"scale": 0})
    check(*tensors, scale=-1, expected={"scale": -1})


@pytest.mark.parametrize("window", [(3, 0), (-1, 2), (0, 0), (5, -1)])
def test_window(window):
    left, right = window

    def mask(b, h, q, kv):
        inside = torch.ones((), dtype=torch.bool)
        if left >= 0:
            inside = inside & (kv >= q - left)
        if right >= 0:
            inside = inside & (kv <= q + right)
        return inside

    tensors = [dense.normal(1, 2, n, 4) for n in (20, 24, 24)]
    check(*tensors, window=window, expected={"mask": mask})


def test_rows_without_keys():
    tensors = [dense.normal(1, 2, n, 4) for n in (20, 9, 9)]
    out, aux = check(
        *tensors, window=(3, 0), expected={"mask": lambda b, h, q, kv: (kv <= q) & (kv >= q - 3)}
    )
    assert (out[:, :, 12:] == 0).all()
    assert aux.lse[:, :, 12:].isneginf().all()


@pytest.mark.parametrize("shape", [(0, 2, 5, 3), (2, 2, 0, 3), (2, 2, 5, 0)])
def test_no_queries_or_no_keys(shape):
    batch, heads, queries, keys = shape
    query = dense.normal(batch, heads, queries, 4)
    key, value = dense.normal(batch, heads, keys, 4), dense.normal(batch, heads, keys, 4)
    check(query, key, value)


def test_segments():
    ids = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 5], [3, 3, 3, 3, 4, 4, 4, 4]])
    tensors = [dense.normal(2, 2, 8, 4) for _ in range(3)]
    mask = (ids[:, :, None] == ids[:, None])[:, None]
    check(*tensors, segment_ids=ids, expected={"mask": mask})
    keys = ids[:, :5].int()
    mask = (ids[:, :, None] == keys[:, None])[:, None]
    key, value = dense.normal(2, 2, 5, 4), dense.normal(2, 2, 5, 4)
    check(
        *(tensors[0], key, value),
        segment_ids=ids.int(),
        kv_segment_ids=keys,
        expected={"mask": mask},
    )


def test_kv_lengths():
    tensors = [dense.normal(3, 2, n, 4) for n in (8, 11, 11)]
    lengths = torch.tensor([11, 4, 0], dtype=torch.int32)
    poisoned = [tensors[0], *(x.detach().clone() for x in tensors[1:])]
    for x in poisoned[1:]:
        for b, n in enumerate(lengths):
            x[b, :, n:] = torch.nan
        x.requires_grad_()
    mask = (torch.arange(11) < lengths[:, None])[:, None, None]
    check(*tensors, kv_lengths=lengths, expected={"mask": mask})
    out = twt.flex_attention(*poisoned, kv_lengths=lengths)
    dense.close(out, dense.attention(*tensors, mask=mask)[0])
    assert all(x.isfinite().all() for x in dense.gradients([out], poisoned))


def test_sinks():
    tensors = [dense.normal(2, 3, 9, 4) for _ in range(3)]
    sinks = dense.normal(3)
    options = {"sinks": sinks, "causal": True}
    check(*tensors, captured=[sinks], **options, expected={"sinks": sinks, "mask": causal})


def test_packed_sequences():
    starts = [0, 5, 5, 17, 20]
    query, key, value = (dense.normal(1, 2, 20, 4) for _ in range(3))
    out, lse = twt.flex_attention(
        *(query, key, value),
        cu_seqlens=torch.tensor(starts, dtype=torch.int32),
        causal=True,
        return_lse=True,
    )
    parts = [
        dense.attention(*(x[:, :, a:b] for x in (query, key, value)), mask=causal)
        for a, b in zip(starts, starts[1:], strict=False)
        if b > a
    ]
    want = torch.cat([p[0] for p in parts], 2), torch.cat([p[1] for p in parts], 2)
    dense.close(out, want[0])
    dense.close(lse, want[1])
    inputs = [query, key, value]
    for x, y in zip(
        dense.gradients((out, lse), inputs), dense.gradients(want, inputs), strict=True
    ):
        dense.close(x, y)


def test_layout_bshd():
    query, key, value = (dense.normal(2, 11, 3, 4) for _ in range(3))
    out, lse = twt.flex_attention(query, key, value, layout="bshd", causal=True, return_lse=True)
    want, want_lse, _ = dense.attention(
        *(x.transpose(1, 2) for x in (query, key, value)), mask=causal
    )
    dense.close(out, want.transpose(1, 2))
    dense.close(lse, want_lse)
    for x, y in zip(
        dense.gradients([out], [query, key, value]),
        dense.gradients([want.transpose(1, 2)], [query, key, value]),
        strict=True,
    ):
        dense.close(x, y)


def test_dropout():
    query, key, value = (dense.normal(2, 2, 64, 8) for _ in range(3))
    eye = torch.eye(64, dtype=torch.float64).expand(2, 2, 64, 64)
    options = {"dropout": 0.25, "seed": 7, "causal": True}
    dropped = twt.flex_attention(query, key, eye, **options)  # the probabilities
    plain = twt.flex_attention(query, key, eye, causal=True)
    kept = dropped != 0
    assert 0.7 < kept[plain != 0].double().mean() < 0.8
    weights = torch.where(kept, plain / 0.75, 0)
    dense.close(dropped, weights)
    out = twt.flex_attention(query, key, value, **options)
    want = (dense.attention(query, key, eye, mask=causal)[0] * kept / 0.75) @ value
    dense.close(out, want)
    inputs = [query, key, value]
    for x, y in zip(dense.gradients([out], inputs), dense.gradients([want], inputs), strict=True):
        dense.close(x, y)
    assert torch.equal(out, twt.flex_attention(query, key, value, **options))
    other = twt.flex_attention(query, key, value, dropout=0.25, seed=8, causal=True)
    assert not torch.equal(out, other)


def test_batch_of_keys_broadcasts_with_a_mask_of_its_own():
    query, key, value = dense.normal(3, 2, 9, 4), dense.normal(1, 2, 9, 4), dense.normal(1, 2, 9, 4)
    mask = twt.create_block_mask(causal, 3, None, 9, 9, device="cpu")
    check(query, key, value, block_mask=mask, expected={"mask": causal})
    with pytest.raises(ValueError, match="same batch size"):
        twt.flex_attention(query, key, value)


def test_inputs_without_gradients_have_none():
    query, key, value = (dense.normal(1, 1, 5, 4, grad=n == 1) for n in range(3))
    out = twt.flex_attention(query, key, value)
    out.sum().backward()
    assert query.grad is None
    assert value.grad is None
    assert key.grad.shape == key.shape
    with torch.no_grad():
        assert not twt.flex_attention(query, key, value).requires_grad
    assert not twt.flex_attention(query, key.detach(), value).requires_grad


def test_lse_alone_and_max_scores():
    query, key, value = (dense.normal(1, 2, 5, 4) for _ in range(3))
    _, aux = twt.flex_attention(
        query, key, value, return_aux=twt.AuxRequest(lse=True, max_scores=True)
    )
    assert not aux.max_scores.requires_grad
    have = torch.autograd.grad(aux.lse.sum(), (query, key, value), materialize_grads=True)
    want = dense.attention(query, key, value)[1]
    want = torch.autograd.grad(want.sum(), (query, key, value), materialize_grads=True)
    for x, y in zip(have, want, strict=True):
        dense.close(x, y)
    out, aux = twt.flex_attention(query, key, value, return_aux=twt.AuxRequest())
    assert aux == twt.AuxOutput()
    assert out.requires_grad


@pytest.mark.parametrize("wanted", [("query",), ("key",), ("value",), ("query", "value"), ("slopes",), ("sinks",)])  # fmt: skip
@pytest.mark.parametrize("custom", [False, True])
def test_only_wanted_gradients_are_computed(monkeypatch, wanted, custom):
    tensors = {
        "query": torch.randn(1, 4, 20, 8, dtype=torch.float64),
        "key": torch.randn(1, 2, 30, 8, dtype=torch.float64),
        "value": torch.randn(1, 2, 30, 6, dtype=torch.float64),
        "slopes": torch.randn(4, dtype=torch.float64),
        "sinks": torch.randn(4, dtype=torch.float64),
    }
    for name in wanted:
        tensors[name].requires_grad_()
    query, key, value, slopes, sinks = tensors.values()

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    def score(s, b, h, q, kv):
        return (Doubled.apply(s) if custom else s * 2) + slopes[h] * (kv - q)

    made = []
    from tilewright.torch import _sites

    results = _sites.Site.results

    def watched(site, *arguments):
        found = results(site, *arguments)
        if site.spec.backward:
            made.append(len(found))
        return found

    monkeypatch.setattr(_sites.Site, "results", watched)
    out = twt.flex_attention(query, key, value, score, enable_gqa=True, sinks=sinks)
    want = dense.attention(query, key, value, lambda s, b, h, q, kv: s * 2 + slopes[h] * (kv - q), sinks=sinks)[0]  # fmt: skip
    inputs = [tensors[name] for name in wanted]
    for x, y in zip(dense.gradients([out], inputs), dense.gradients([want], inputs), strict=True):
        dense.close(x, y)
    assert made == [len(wanted)]


def test_rows_of_large_scores_have_gradients():
    """Also in calls that repeat a recording, whatever the rows in the recorded call were."""
    x = torch.ones(1, 1, 8, 4)
    most = torch.tensor(0.0)

    def score(s, b, h, q, kv):
        return torch.where((kv == 2) | (kv == 5), most, s)

    for number, want in ((2.0, 1), (3e38, 4), (-3e38, 0), (1.71e38, 4), (2.0, 1)):
        most.fill_(number)
        value = torch.ones(1, 1, 8, 4, requires_grad=True)
        twt.flex_attention(x, x, value, score).sum().backward()
        got = value.grad[0, 0, :, 0]
        torch.testing.assert_close(got[2].item(), float(want), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(got.sum().item(), 8.0, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "shapes, enable_gqa",
    [
        (((2, 3, 5, 4), (1, 3, 7, 4), (1, 3, 7, 4)), False),
        (((1, 3, 5, 4), (2, 3, 7, 4), (1, 1, 7, 4)), False),
        (((2, 3, 5, 4), (7, 4), (3, 7, 4)), False),
        (((2, 4, 6, 5, 4), (4, 1, 7, 4), (2, 1, 6, 7, 4)), False),
        (((5, 4), (2, 7, 4), (7, 4)), False),
        (((2, 6, 5, 4), (1, 1, 7, 4), (2, 1, 7, 4)), False),
        (((2, 4, 5, 4), (1, 2, 7, 4), (2, 2, 7, 4)), True),
    ],
)
def test_leading_dimensions_broadcast(shapes, enable_gqa):
    """As in torch's function, gradients included."""
    ours, theirs = (
        [torch.randn(s, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
         .requires_grad_() for s in shapes]
        for _ in range(2)
    )  # fmt: skip
    have = twt.scaled_dot_product_attention(*ours, enable_gqa=enable_gqa)
    want = torch.nn.functional.scaled_dot_product_attention(*theirs, enable_gqa=enable_gqa)
    assert have.shape == want.shape
    torch.testing.assert_close(have, want)
    have.square().sum().backward()
    want.square().sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


def test_windows_of_other_sequences():
    query, key, value = (dense.normal(1, 2, 9, 4) for _ in range(3))
    want = twt.flex_attention(query, key, value, window=(3, 1))
    for window in ([3, 1], torch.tensor([3, 1]), torch.tensor([3, 1]).numpy()):
        for _ in range(2):
            dense.close(twt.flex_attention(query, key, value, window=window), want)
