"""Every example of FlexAttention's notebook, with Tilewright's import.

Each is drawn, timed forward and backward beside torch's attention, and checked against it. On the CPU,
or on a GPU with `--device cuda`. `--seq-len N` sets the length; `--torch-flex` adds a row for torch's
own FlexAttention, compiled (on the CPU forward alone, and some 30 seconds for each example).
"""

import argparse
import random
import time
from functools import lru_cache

import torch
import torch.nn.functional as F

from tilewright.torch import (
    _DEFAULT_SPARSE_BLOCK_SIZE,
    create_block_mask,
    create_mask,
    flex_attention,
)

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--device", default="cpu")
arguments.add_argument("--seq-len", type=int, default=256)
arguments.add_argument("--heads", type=int, default=2)
arguments.add_argument("--batch", type=int, default=1)
arguments.add_argument("--seconds", type=float, default=0.0, help="to measure for, per row")
arguments.add_argument("--torch-flex", action="store_true")
arguments = arguments.parse_args()

device, S, HEADS = arguments.device, arguments.seq_len, arguments.heads
data_type = torch.float16 if device == "cuda" else torch.float32
torch.manual_seed(0)
print(f"Using the default sparsity block size: {_DEFAULT_SPARSE_BLOCK_SIZE}")

# ---- What each example goes through: a table of times, a check of results, a picture.


@lru_cache
def create_block_mask_cached(mask_mod, B, H, M, N, device):
    return create_block_mask(mask_mod, B, H, M, N, device=device)


def milliseconds(function):
    """The fastest of some runs, after one that is not counted."""
    best, end = float("inf"), time.perf_counter() + arguments.seconds
    for i in range(1000):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        if i > 0:
            best = min(best, time.perf_counter() - begin)
        if i > 0 and time.perf_counter() > end:
            break
    return 1e3 * best


def tensors(*shape):
    return [torch.randn(shape, device=device, dtype=data_type, requires_grad=True) for _ in "qkv"]


def test_mask(score_mod=None, mask_mod=None, S=S, D=64, skip_correctness=False, print_mask=True):
    assert score_mod is not None or mask_mod is not None, "Must provide a score_mod or mask_mod"
    query, key, value = inputs = tensors(arguments.batch, HEADS, S, D)
    grad_out = torch.randn_like(query)
    block_mask = None
    if mask_mod is not None:
        block_mask = create_block_mask_cached(mask_mod, 1, 1, S, S, query.device)
    mask = create_mask(mask_mod or score_mod, 1, 1, S, S, device=query.device)
    density = 1.0 if block_mask is None else (100 - block_mask.sparsity()) / 100
    flops = arguments.batch * HEADS * D * S * S

    calls = {
        "tilewright": lambda: flex_attention(query, key, value, score_mod, block_mask),
        "causal SDPA": lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        "SDPA + mask": lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=mask),
    }
    if arguments.torch_flex:
        calls["torch flex, compiled"] = theirs(query, key, value, score_mod, mask_mod)
    rows = []
    for name, call in calls.items():
        work = flops * (0.5 if name == "causal SDPA" else density)
        forward, backward = milliseconds(call), None
        if device == "cuda" or "flex" not in name:
            out = call()
            backward = milliseconds(
                lambda out=out: torch.autograd.grad(out, inputs, grad_out, retain_graph=True)
            )
        rows.append((name, forward, 4 * work, backward, 10 * work))

    if not skip_correctness:
        results = []
        for name in ("tilewright", "SDPA + mask"):
            out = calls[name]()
            results.append([out, *torch.autograd.grad(out, (query, key, value), grad_out)])
        near = {"atol": 1e-1, "rtol": 1e-2} if device == "cuda" else {"atol": 1e-4, "rtol": 1e-4}
        for have, want in zip(*results, strict=True):
            torch.testing.assert_close(have, want, **near)
        print("Correctness check passed ✅")

    print(f"\nResults for {(score_mod or mask_mod).__name__}:")
    print(f"{'Operation':22} {'FW ms':>9} {'FW GFLOP/s':>11} {'BW ms':>9} {'BW GFLOP/s':>11}")
    for name, forward, forward_flops, backward, backward_flops in rows:
        line = f"{name:22} {forward:9.3f} {forward_flops / forward / 1e6:11.1f}"
        if backward is not None:
            line += f" {backward:9.3f} {backward_flops / backward / 1e6:11.1f}"
        print(line)
    if print_mask:
        print(f"\nBlock Mask:\n{block_mask}")


def theirs(query, key, value, score_mod, mask_mod):
    """torch's own, without gradients on the CPU, where it has none."""
    from torch.nn.attention import flex_attention as torch_flex

    mask, length = None, query.shape[2]
    if mask_mod is not None:
        mask = torch_flex.create_block_mask(mask_mod, 1, 1, length, length, device=device)
    compiled = torch.compile(torch_flex.flex_attention, dynamic=False)
    if device == "cpu":
        query, key, value = (x.detach() for x in (query, key, value))
    return lambda: compiled(query, key, value, score_mod, mask)


# ---- Basic usage.


def checkerboard(score, batch, head, token_q, token_kv):
    score = torch.where(torch.abs(token_kv - token_q) % 2 == 1, score * 0.5, score)
    score = torch.where(torch.abs(token_kv - token_q) % 2 == 0, score * 2.0, score)
    return score


query, key, value = tensors(2, HEADS, S, 64)
output = flex_attention(query, key, value, score_mod=checkerboard)
index = torch.arange(S, device=device)
factor = torch.where((index[:, None] - index) % 2 == 0, 2.0, 0.5)
scores = torch.einsum("bhqd,bhkd->bhqk", query.float(), key.float()) / 8 * factor
dense = torch.softmax(scores, -1) @ value.float()
torch.testing.assert_close(output.float(), dense, atol=2e-2, rtol=2e-2)

# ---- Full attention, causal attention.


def noop(score, b, h, q_idx, kv_idx):
    return score


test_mask(noop, print_mask=True)


def causal_bias(score, b, h, q_idx, kv_idx):
    return torch.where(q_idx >= kv_idx, score, -float("inf"))


test_mask(score_mod=causal_bias)


def causal_mask(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


test_mask(mask_mod=causal_mask)

# ---- Sliding window.

SLIDING_WINDOW = S // 8


def sliding_window_causal_mask(b, h, q_idx, kv_idx):
    causal_mask = q_idx >= kv_idx
    # The right side of the window needs no check, since the mask is causal.
    windowed_mask = q_idx - kv_idx <= SLIDING_WINDOW
    return causal_mask & windowed_mask


test_mask(mask_mod=sliding_window_causal_mask)

# ---- Prefix LM: bidirectional and causal.

PREFIX_LENGTH = S // 4


def prefix_lm_causal_mask(b, h, q_idx, kv_idx):
    prefix_mask = kv_idx <= PREFIX_LENGTH
    causal_mask = q_idx >= kv_idx
    return prefix_mask | causal_mask


test_mask(mask_mod=prefix_lm_causal_mask)

# ---- Documents.

document_id = torch.zeros(2 * S, dtype=torch.int, device=device)
document_id[S // 4 : S // 2] = 1
for i in range(S // 2, 2 * S, S // 2):
    document_id[i : i + S // 2] = i // (S // 2) + 1


def document_causal_mask(b, h, q_idx, kv_idx):
    causal_mask = q_idx >= kv_idx
    document_mask = document_id[q_idx] == document_id[kv_idx]
    return causal_mask & document_mask


test_mask(mask_mod=document_causal_mask, S=2 * S)

# ---- Stand-alone self-attention and NATTEN, over an image of W x W pixels.

W = max(int(S**0.5) // 8, 2) * 8
WINDOW, K_W, K_H, T_W, T_H = W // 16, 7, 7, 8, 8


def get_x_y(idx):
    return idx // W, idx % W


def sasa_mask(b, h, q_idx, kv_idx):
    q_x, q_y = get_x_y(q_idx)
    kv_x, kv_y = get_x_y(kv_idx)
    horizontal_mask = (q_x - kv_x).abs() <= WINDOW
    vertical_mask = (q_y - kv_y).abs() <= WINDOW
    return horizontal_mask & vertical_mask


test_mask(mask_mod=sasa_mask, S=W * W)


def natten_around(get_x_y):
    """The neighbourhood of K_W x K_H pixels, moved to stay on the canvas."""

    def natten_mask(b, h, q_idx, kv_idx):
        q_x, q_y = get_x_y(q_idx)
        kv_x, kv_y = get_x_y(kv_idx)
        kernel_x = q_x.clamp(K_W // 2, (W - 1) - K_W // 2)
        kernel_y = q_y.clamp(K_H // 2, (W - 1) - K_H // 2)
        hori_mask = (kernel_x - kv_x).abs() <= K_W // 2
        vert_mask = (kernel_y - kv_y).abs() <= K_H // 2
        return hori_mask & vert_mask

    return natten_mask


natten_mask = natten_around(get_x_y)
test_mask(mask_mod=natten_mask, S=W * W)

# Pixels counted tile by tile of T_W x T_H make denser blocks.


def get_idx_tiled(x, y):
    t_id = x // T_W * (W // T_W) + y // T_H
    return t_id * (T_H * T_W) + x % T_W * T_W + y % T_H


def get_x_y_tiled(idx):
    t_id, t_offset = idx // (T_H * T_W), idx % (T_H * T_W)
    t_x, t_y = t_id // (W // T_W), t_id % (W // T_W)
    return t_x * T_W + t_offset // T_W, t_y * T_H + t_offset % T_W


tiled_natten_mask = natten_around(get_x_y_tiled)
test_mask(mask_mod=tiled_natten_mask, S=W * W)


def run_natten(mask, order, image, grad_out):
    """Output and gradients of an image whose pixels are counted in this order."""
    inputs = [x.detach().flatten(2, 3)[:, :, order].requires_grad_() for x in image]
    block_mask = create_block_mask_cached(mask, 1, 1, W * W, W * W, grad_out.device)
    out = flex_attention(*inputs, block_mask=block_mask)
    gradients = torch.autograd.grad(out, inputs, grad_out.flatten(2, 3)[:, :, order])
    back = torch.argsort(order)
    return [x[:, :, back] for x in (out, *gradients)]


image = tensors(1, HEADS, W, W, 64)
grad_out = torch.randn_like(image[0])
pixels = torch.arange(W * W, device=device)
x, y = get_x_y_tiled(pixels)
assert torch.equal(get_idx_tiled(x, y), pixels)
naive = run_natten(natten_mask, pixels, image, grad_out)
tiled = run_natten(tiled_natten_mask, x * W + y, image, grad_out)
for a, b in zip(naive, tiled, strict=True):
    torch.testing.assert_close(a, b, atol=1e-1 if device == "cuda" else 1e-4, rtol=1e-2)
print("Correctness check passed ✅")

# ---- ALiBi, with a table and with a formula.

alibi_bias = torch.exp2(-((torch.arange(HEADS, device=device) + 1) * 8.0 / HEADS))


def alibi_and_causal_closure(score, b, h, q_idx, kv_idx):
    bias = alibi_bias[h] * (kv_idx - q_idx)
    return score + bias


def alibi_and_causal_functional(score, b, h, q_idx, kv_idx):
    scale = torch.exp2(-((h + 1) * 8.0 / HEADS))
    bias = (kv_idx - q_idx) * scale
    return score + bias


for alibi in (alibi_and_causal_closure, alibi_and_causal_functional):
    test_mask(alibi, mask_mod=causal_mask, skip_correctness=True, print_mask=False)
query, key, value = tensors(1, HEADS, S, 64)
a, b = (
    flex_attention(
        query, key, value, alibi, create_block_mask_cached(causal_mask, 1, 1, S, S, device)
    )
    for alibi in (alibi_and_causal_closure, alibi_and_causal_functional)
)
torch.testing.assert_close(a, b)

# ---- Soft-capping by an operator of one's own, with its derivative.


@torch.library.custom_op("approx::tanh", mutates_args=())
def tanh_approx(inp: torch.Tensor) -> torch.Tensor:
    return torch.tanh(inp)


@tanh_approx.register_fake
def _(inp: torch.Tensor) -> torch.Tensor:
    return torch.tanh(inp)


class TanhApprox(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.ops.approx.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad_output):
        (result,) = ctx.saved_tensors
        return grad_output * (1 - result * result)


def tanh_soft_cap(score, b, h, q_idx, kv_idx):
    score = score / 2
    score = TanhApprox.apply(score)
    return score * 2


def tanh_soft_cap_by_torch(score, b, h, q_idx, kv_idx):
    return torch.tanh(score / 2) * 2


test_mask(tanh_soft_cap, mask_mod=causal_mask, skip_correctness=True)
results = []
for mod in (tanh_soft_cap, tanh_soft_cap_by_torch):
    out = flex_attention(query, key, value, mod)
    results.append([out, *torch.autograd.grad(out.sum(), (query, key, value))])
for a, b in zip(*results, strict=True):
    torch.testing.assert_close(a, b, atol=5e-3, rtol=5e-3)

# ---- Nested jagged tensors: packed, with a mask of sequences, and as they are.

random.seed(0)
BATCH, D = 4, 64


def build_seq_idx(tensor):
    offsets = tensor.offsets()
    positions = torch.arange(int(offsets[-1]), device=device, dtype=torch.int32)
    return torch.searchsorted(offsets, positions, right=True) - 1


def create_njt_wrapper(orig_mask_mod, offsets, seq_idx):
    """A mask mod of one sequence as one of sequences laid end to end."""

    def njt_mask_mod(b, h, q_idx, kv_idx):
        q_nested = q_idx - offsets[seq_idx[q_idx]]
        kv_nested = kv_idx - offsets[seq_idx[kv_idx]]
        is_same_sequence = seq_idx[q_idx] == seq_idx[kv_idx]
        return orig_mask_mod(b, h, q_nested, kv_nested) & is_same_sequence

    return njt_mask_mod


lengths = [random.randint(1, S // 2) for _ in range(BATCH)]
ragged = [torch.randn(n, HEADS, D, device=device, dtype=data_type) for n in lengths]
query, key, value = (
    torch.nested.nested_tensor(ragged, layout=torch.jagged, requires_grad=True) for _ in "qkv"
)
total, offsets = sum(lengths), query.offsets()
causal_njt = create_njt_wrapper(causal_mask, offsets, build_seq_idx(query))
block_mask = create_block_mask_cached(causal_njt, 1, 1, total, total, device)
packed = [x.values().detach().requires_grad_() for x in (query, key, value)]
out = flex_attention(
    *(x.view(1, -1, HEADS, D).transpose(1, 2) for x in packed), block_mask=block_mask
)
grad_out = torch.randn_like(out)
packed_results = [out, *torch.autograd.grad(out, packed, grad_out)]

nested_out = flex_attention(*(x.transpose(1, 2) for x in (query, key, value)), mask_mod=causal_mask)
nested_out.values().backward(grad_out[0])
nested_results = [nested_out.values(), *(x.grad.values() for x in (query, key, value))]
for have, want in zip(nested_results, packed_results, strict=True):
    torch.testing.assert_close(have, want.squeeze(0), atol=1e-2, rtol=1e-2)

begin = 0
for n in lengths:  # each sequence alone
    q, k, v = (x.detach()[begin : begin + n].transpose(0, 1) for x in packed)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(out[0, :, begin : begin + n], want, atol=1e-2, rtol=1e-2)
    begin += n
print("Correctness check passed ✅")
print(block_mask)

# ---- Flamingo's cross attention: the tokens that see each image.

num_tokens, image_token_length = 12, 3
intervals = torch.tensor([[0, 7], [1, 7], [7, 12]], device=device)
image_boundaries = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2], device=device)


def vision_x_attention_mask(b, h, q_idx, kv_idx):
    image_idx = image_boundaries[kv_idx]
    interval = intervals[image_idx]
    return (q_idx >= interval[0]) & (q_idx < interval[1])


mask = create_mask(vision_x_attention_mask, 1, 1, num_tokens, 3 * image_token_length, device)
print(mask)
token = torch.arange(num_tokens, device=device)[:, None]
begins, ends = intervals[image_boundaries].T
assert torch.equal(mask[0, 0], (token >= begins) & (token < ends))
