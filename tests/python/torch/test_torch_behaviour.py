"""What PyTorch's own tests of flex_attention check since torch 2.7, in short."""

import functools

import dense_torch as dense
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention as flex
from torch.utils import checkpoint

import tilewright.torch as twt

HAS_ORDERS = hasattr(flex.BlockMask, "_dq_kv_order")


def tensors(*shape, dtype=torch.float32, grad=True):
    return [torch.randn(shape, dtype=dtype, requires_grad=grad) for _ in "qkv"]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


@pytest.fixture(params=["eager", "aot_eager"])
def attend(request):
    torch._dynamo.reset()
    torch.manual_seed(5)
    if request.param == "eager":
        return twt.flex_attention
    return torch.compile(twt.flex_attention, backend=request.param, fullgraph=True)


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_keys_and_values_of_another_dtype(attend, low):
    query, key, value = tensors(1, 2, 64, 32, grad=False)
    key, value = key.to(low), value.to(low)
    want = twt.flex_attention(query, key.float(), value.float())
    torch.testing.assert_close(attend(query, key, value), want)
    scale = torch.tensor([0.5, 2.0])  # scales of float8, applied by the score mod
    narrow = attend(
        query.bfloat16(), key, value, score_mod=lambda s, b, h, q, kv: s * scale[h], return_lse=True
    )[0]
    assert narrow.dtype == torch.bfloat16
    want = twt.flex_attention(
        query, key.float(), value.float(), score_mod=lambda s, b, h, q, kv: s * scale[h]
    )
    torch.testing.assert_close(narrow.float(), want, atol=2e-2, rtol=2e-2)


def test_gradients_of_several_dtypes(attend):
    query, key, value = tensors(1, 2, 64, 32)
    half = key.detach().half().requires_grad_()
    out = attend(query, half, value)
    want = twt.flex_attention(query, half.float(), value)
    grads, wants = (torch.autograd.grad(x.sin().sum(), (query, half)) for x in (out, want))
    assert grads[1].dtype == torch.float16
    for have, wanted in zip(grads, wants, strict=True):
        torch.testing.assert_close(have, wanted)
    with pytest.raises(ValueError, match="same dtype"):
        twt.scaled_dot_product_attention(query, half, half)


def test_gradients_of_narrow_captures(attend):
    linear = nn.Linear(16, 4 * 32, dtype=torch.bfloat16)
    x = torch.randn(2, 32, 16, dtype=torch.bfloat16)
    heads = x.view(2, 32, 4, 4).transpose(1, 2)
    bias = linear(x).view(2, 32, 4, 32).transpose(1, 2)
    attend(heads, heads, heads, lambda s, b, h, q, kv: s + bias[b, h, q, kv]).sum().backward()
    assert linear.weight.grad.dtype == torch.bfloat16


def test_captures_that_do_not_matter_have_no_gradient(attend):
    query, key, value = tensors(1, 4, 16, 8)
    table, scale = torch.zeros(4, 2, requires_grad=True), torch.tensor(0.7, requires_grad=True)

    def score_mod(score, b, h, q_idx, kv_idx):
        _ = table[h]
        return score + scale.detach()

    attend(query, key, value, score_mod).sum().backward()
    assert query.grad is not None
    assert table.grad is None
    assert scale.grad is None


def test_captured_scalars_have_gradients(attend):
    scale, one = torch.tensor(0.7, requires_grad=True), torch.ones(1, requires_grad=True)
    query, key, value = tensors(1, 2, 16, 8)
    out = attend(query, key, value, lambda s, b, h, q, kv: s * scale + scale + one[0] * s)
    want = torch.softmax((query @ key.mT) * 8**-0.5 * (scale + one) + scale, -1) @ value
    torch.testing.assert_close(out, want)
    inputs = (query, scale, one)
    for have, wanted in zip(
        *(torch.autograd.grad(x.sin().sum(), inputs) for x in (out, want)), strict=True
    ):
        torch.testing.assert_close(have, wanted, atol=1e-5, rtol=1e-4)


def test_gradients_of_bfloat16_captures_that_a_mod_casts(attend):
    """Summed in float32 and rounded once: the bound is one rounding and what bfloat16 inputs of the
    backward pass add, of the same size; a rounding of each of the 2 * 256 * 256 pairs adds more."""
    query, key, value = (x.bfloat16().detach().requires_grad_() for x in tensors(2, 4, 256, 16))
    gate, dout = torch.randn(4, dtype=torch.bfloat16, requires_grad=True), torch.randn_like(value)
    out = attend(query, key, value, lambda s, b, h, i, j: s * torch.sigmoid(gate[h].float()))
    (have,) = torch.autograd.grad(out, gate, dout)
    wide = [x.detach().double() for x in (query, key, value)]
    gate64 = gate.detach().double().requires_grad_()
    scores = wide[0] @ wide[1].mT * 16**-0.5 * torch.sigmoid(gate64)[:, None, None]
    (want,) = torch.autograd.grad(torch.softmax(scores, -1) @ wide[2], gate64, dout.double())
    assert have.dtype == torch.bfloat16
    torch.testing.assert_close(have.double(), want, rtol=2**-8, atol=2**-7 * want.abs().max())


def test_scores_that_do_not_matter(attend):
    query, key, value = tensors(1, 1, 128, 16)
    attend(query, key, value, lambda s, b, h, q, kv: (q >= kv) * 1.0).sum().backward()
    assert (query.grad == 0).all()
    assert value.grad.abs().sum() > 0


def test_captures_of_symbolic_sizes():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(twt.flex_attention, fullgraph=True, dynamic=True, backend=counter)
    for heads in (4, 8, 4, 16):
        slopes = torch.randn(heads, requires_grad=True)
        query, key, value = tensors(2, heads, 64, 8)
        mask = twt.create_block_mask(twt.noop_mask, 2, 1, 64, 64, device="cpu")
        calls = [
            call(query, key, value, lambda s, b, h, q, kv, w=slopes: s * w[h], mask)
            for call in (compiled, twt.flex_attention)
        ]
        for have, want in zip(
            *(torch.autograd.grad(x.sin().sum(), (query, slopes)) for x in calls), strict=True
        ):
            torch.testing.assert_close(have, want)
    assert counter.frame_count == 1


def test_shapes_of_captures_that_matter_are_guarded():
    compiled = torch.compile(twt.flex_attention, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (24, 40):
        query, key, value = tensors(1, 2, length, 8)
        table = torch.randn(length)

        def score_mod(score, b, h, q_idx, kv_idx, table=table):
            return score + table.flip(0)[q_idx] / table.shape[0]

        have, want = (f(query, key, value, score_mod) for f in (compiled, twt.flex_attention))
        torch.testing.assert_close(have, want)


def test_numbers_of_masks_made_in_the_region():
    def run(query, key, value, position):
        last, rows = position + 1, query.size(-2) // 32 + key.size(-2) // 32

        def mask_mod(b, h, q_idx, kv_idx):
            return (kv_idx <= last + 60) & (q_idx < rows * 20)

        mask = twt.create_block_mask(
            mask_mod, query.size(0), query.size(1), query.size(-2), key.size(-2), device="cpu"
        )
        return twt.flex_attention(query, key, value, block_mask=mask)

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for queries, keys, position in ((192, 128, 5), (160, 96, 9)):
        query, key, value = torch.randn(1, 2, queries, 16), *torch.randn(2, 1, 2, keys, 16)
        have, want = (f(query, key, value, position) for f in (compiled, run))
        torch.testing.assert_close(have, want)


def test_lengths_are_not_specialised():
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(twt.flex_attention, fullgraph=True, backend=counter)

    def inputs(length):
        mask = twt.create_block_mask(causal, None, None, length, length, device="cpu")
        return *tensors(1, 1, length, 16, grad=False), None, mask

    for length in (320, 256, 192):
        assert compiled(*inputs(length)).shape == (1, 1, length, 16)
    assert counter.frame_count == 2
    with pytest.raises(Exception, match="block_mask was created for"):
        compiled(*inputs(512)[:4], inputs(320)[4])


def test_callable_objects_as_masks():
    class Mask:
        __name__ = "wide_causal"  # torch 2.11 needs one

        def __init__(self, width):
            self.width = width

        def __call__(self, b, h, q_idx, kv_idx):
            return (q_idx >= kv_idx) | (kv_idx - q_idx < self.width)

        def __eq__(self, other):
            return isinstance(other, Mask) and self.width == other.width

        def __hash__(self):
            return hash(self.width)

    mask_mod = Mask(16)
    query, key, value = tensors(1, 2, 64, 16, grad=False)

    def run(query, key, value):
        mask = twt.create_block_mask(mask_mod, 1, 2, 64, 64, device=query.device)
        return twt.flex_attention(query, key, value, block_mask=mask)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(query, key, value), run(query, key, value))


def test_a_region_that_makes_its_captures_and_goes_backward():
    @torch.compile(backend="aot_eager")
    def run(x, y):
        batch, length = x.shape[:2]
        b = torch.arange(batch).view(batch, 1, 1)
        row, column = torch.arange(length).view(1, -1, 1), torch.arange(length).view(1, 1, -1)
        bias = y[b, row] + y[b, column]
        heads = x[:, :, None].repeat(1, 1, 16, 1)
        return twt.flex_attention(
            heads, heads, heads, lambda s, b, h, q, kv: s + bias[b, q, kv]
        ).mean()

    x, y = torch.randn(2, 16, 32, requires_grad=True), torch.randn(2, 16, requires_grad=True)
    run(x, y).backward()
    assert x.grad.norm() > 0
    assert y.grad.norm() > 0


@pytest.mark.parametrize("saved", [[torch.ops.aten.mm.default], "ours", "torch's"])
def test_selective_checkpoints(saved):
    from tilewright.torch import _marker

    names = {"ours": torch.ops.tilewright.forward.default, "torch's": _marker.base2_marker}
    saved = [names[saved]] if isinstance(saved, str) else saved
    linear = nn.Linear(32, 96)
    contexts = functools.partial(checkpoint.create_selective_checkpoint_contexts, saved)

    def attention(x):
        query, key, value = linear(x).view(2, 64, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return flex.flex_attention(query, key, value)

    def run(x):
        return checkpoint.checkpoint(attention, x, use_reentrant=False, context_fn=contexts)

    x = torch.randn(2, 64, 32, requires_grad=True)
    with twt.install():
        outs = run(x), torch.compile(run, backend="aot_eager")(x)
        torch.testing.assert_close(*outs)
        torch.testing.assert_close(*(torch.autograd.grad(out.sum(), x) for out in outs))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)])
def test_order_of_strides_with_dimensions_of_one(attend, order):
    stride_order = pytest.importorskip("torch._inductor.ir").get_stride_order
    query, key, value = (x.detach().permute(order).requires_grad_() for x in tensors(2, 1, 48, 16))
    out = attend(query, key, value)
    assert stride_order(out.stride()) == stride_order(query.stride())
    out.backward(torch.randn_like(out))
    for x in (query, key, value):
        assert stride_order(x.grad.stride()) == stride_order(x.stride())


def test_blocks_beyond_the_length(attend):
    query, key, value = tensors(2, 4, 96, 16)
    mask = twt.create_block_mask(
        lambda b, h, q, kv: kv >= 64, None, None, 96, 96, BLOCK_SIZE=64, device="cpu"
    )
    want = torch.softmax(query @ key[:, :, 64:].mT / 4, -1) @ value[:, :, 64:]
    torch.testing.assert_close(attend(query, key, value, block_mask=mask), want)


@pytest.mark.parametrize("kind", ["nan beside the batch", "1 / score", "log of scores above 0"])
def test_poison_stays_where_no_pair_is(attend, kind):
    length = 257
    query, key, value = tensors(1, 1, length, 16)
    bias = torch.randn(2, 1, length, length)
    bias[1:] = float("nan")
    score_mod = {
        "nan beside the batch": lambda s, b, h, q, kv: s + bias[b, h, q, kv],
        "1 / score": lambda s, b, h, q, kv: 1 / s,
        "log of scores above 0": lambda s, b, h, q, kv: torch.where(s > 0, torch.log(s), s),
    }[kind]
    mask = twt.create_block_mask(causal, 1, 1, length, length, device="cpu")
    out = attend(query, key, value, score_mod, mask)
    out.sum().backward()
    assert all(x.isfinite().all() for x in (out, query.grad, value.grad))


# ---- Block masks.


def test_the_default_device_is_there():
    mask = twt.create_block_mask(causal, None, None, 256, 256)
    wanted = "cuda" if torch.cuda.is_available() else "cpu"
    assert mask.kv_indices.device.type == wanted
    assert twt.create_mask(causal, None, None, 8, 8).device.type == wanted


def test_lists_as_wide_as_they_need(attend):
    documents = torch.arange(512)
    documents[:400] = 0
    wide = twt.create_block_mask(
        lambda b, h, q, kv: (q >= kv) | (documents[q] == documents[kv]),
        1,
        1,
        512,
        512,
        device="cpu",
    )
    lists = {}
    for side in ("kv", "full_kv", "q", "full_q"):
        counts = getattr(wide, f"{side}_num_blocks")
        indices = getattr(wide, f"{side}_indices")
        lists[f"{side}_num_blocks"] = counts
        lists[f"{side}_indices"] = indices[..., : max(int(counts.max()), 1)].contiguous()
    narrow = twt.BlockMask(
        seq_lengths=wide.seq_lengths, BLOCK_SIZE=wide.BLOCK_SIZE, mask_mod=wide.mask_mod, **lists
    )
    assert narrow.full_kv_indices.shape != narrow.kv_indices.shape
    query, key, value = tensors(1, 1, 512, 16)
    have, want = (attend(query, key, value, block_mask=mask) for mask in (narrow, wide))
    torch.testing.assert_close(have, want)
    diagonal = twt.BlockMask.from_kv_blocks(
        torch.ones(1, 1, 4).int(),
        torch.arange(4).int().view(1, 1, 4, 1),
        seq_lengths=(512, 512),
        compute_q_blocks=False,
    )
    block = torch.arange(512) // 128
    want = dense.attention(query, key, value, mask=block[:, None] == block)[0]
    torch.testing.assert_close(attend(query, key, value, block_mask=diagonal), want)


def test_lists_of_keys_alone(attend):
    mask = twt.BlockMask.from_kv_blocks(
        torch.full((1, 1, 1), 4).int(),
        torch.arange(4).int().view(1, 1, 1, 4),
        compute_q_blocks=False,
    )
    assert mask.q_indices is None
    assert mask[0].q_indices is None
    query = torch.randn(1, 1, 128, 16, requires_grad=True)
    key, value = torch.randn(2, 1, 1, 512, 16)
    out = attend(query, key, value, block_mask=mask)
    out.sum().backward()  # torch refuses this without q_indices
    torch.testing.assert_close(out, torch.softmax(query @ key.mT / 4, -1) @ value)


def test_torchs_empty_mask_is_of_any_length(attend):
    query, key, value = tensors(1, 2, 48, 8)
    mask = flex._create_empty_block_mask(query, key)
    have, want = attend(query, key, value, block_mask=mask), twt.flex_attention(query, key, value)
    torch.testing.assert_close(have, want)


def test_parts_of_queries():
    mask = twt.create_block_mask(causal, None, None, 9, 10, BLOCK_SIZE=4, device="cpu")
    parts = [
        (1, 4),
        (2, 1),
        (-1, 1),
        (slice(1, None), 5),
        (slice(0, 0), 0),
        (slice(None, None, 2), 5),
    ]
    for index, length in parts:
        part = mask[:, :, index]
        assert part.shape == (1, 1, length, 10)
        rows = index if isinstance(index, slice) else [index]
        assert torch.equal(part.to_dense(), mask.to_dense()[:, :, rows])
    if HAS_ORDERS:  # older versions leave the length unchanged
        assert mask[:, :, torch.tensor([1])].shape == (1, 1, 4, 10)
    tail = mask[:, :, 2]
    assert tail.seq_lengths == (1, 10)
    assert not tail.q_indices.any()


def test_a_part_with_a_mask_of_its_own(attend):
    position, length = 130, 512
    query = torch.randn(2, 4, 1, 16)
    key, value = torch.randn(2, 2, 4, length, 16)
    base = twt.create_block_mask(causal, 2, None, length, length, device="cpu")
    part = base[:, :, position // 128]
    offset = torch.tensor(position)
    part.mask_mod = lambda b, h, q, kv: causal(b, h, q + offset, kv)
    part.seq_lengths = (1, length)
    want = torch.softmax(query @ key[:, :, : position + 1].mT / 4, -1) @ value[:, :, : position + 1]
    torch.testing.assert_close(attend(query, key, value, block_mask=part), want)


def test_adjusted_lists_forget_what_they_do_not_count():
    def mask_mod(b, h, q_idx, kv_idx):
        return (kv_idx < 128) | ((kv_idx >= 384) & (kv_idx < 512))

    adjusted = twt.create_block_mask(mask_mod, 1, 1, 128, 640, device="cpu")._adjust(128, 384)
    want = twt.create_block_mask(mask_mod, 1, 1, 128, 384, device="cpu")
    assert torch.equal(adjusted.to_dense(), want.to_dense())


def test_flattened_and_back():
    mask = twt.create_block_mask(causal, 2, 4, 512, 512, device="cpu")
    back = twt.BlockMask._unflatten(*mask._flatten())
    assert back.shape == mask.shape
    for name in (*twt.BlockMask._TENSOR_ATTRS, *twt.BlockMask._CONTEXT_ATTRS):
        have, want = getattr(back, name), getattr(mask, name)
        assert torch.equal(have, want) if isinstance(want, torch.Tensor) else have == want


def test_options_of_masks_made_in_a_region():
    options = {"separate_full_blocks": False} if HAS_ORDERS else {}
    compiled = torch.compile(twt.create_block_mask, backend="eager", fullgraph=True)
    mask = compiled(causal, 1, 1, 256, 256, device="cpu", **options)
    assert (mask.full_kv_num_blocks is None) == HAS_ORDERS


@pytest.mark.skipif(not HAS_ORDERS, reason="orders of writes are of torch 2.12 and newer")
def test_orders_of_writes():
    mask = twt.create_block_mask(
        causal, 2, 2, 256, 256, device="cpu", compute_dq_write_order=True, dq_kv_order=True
    )
    for part in (mask, mask[0], mask._adjust(128, 128), mask.to("cpu")):
        assert part.dq_write_order is not None
        assert part._dq_kv_order() is True
    lists = torch.tensor([[[1, 2]]]).int(), torch.tensor([[[[0, 0], [0, 1]]]]).int()
    made = twt.BlockMask.from_kv_blocks(
        *lists,
        dq_write_order=torch.zeros(1, 1, 2, 2).int(),
        dq_kv_order=torch.tensor([[[1, 0]]]).int(),
    )
    for part in (lambda: made[0], lambda: made._adjust(128, 128)):
        with pytest.raises(NotImplementedError, match="tensor dq_kv_order"):
            part()
