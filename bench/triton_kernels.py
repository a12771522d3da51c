"""A matrix product and attention in Triton, as its tutorials write them (persistent matmul, fused
attention): baselines of `tilewright bench --baseline triton`."""

import functools

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = 1.4426950408889634


def set_product_blocks(arguments):
    m, n, k = (arguments[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    arguments["x"].block_shape = [m, k]
    arguments["y"].block_shape = [k, n]
    arguments["z"].block_shape = [m, n]


@triton.autotune(
    [
        triton.Config(
            {"BLOCK_M": 128, "BLOCK_N": n, "BLOCK_K": k, "GROUP": 8},
            num_stages=stages,
            num_warps=8,
            pre_hook=set_product_blocks,
        )
        for n, k, stages in ((256, 64, 3), (256, 64, 4), (128, 64, 4), (128, 64, 3), (128, 128, 3))
    ],
    key=["rows", "columns", "inner"],
)
@triton.jit
def product_kernel(
    x, y, z, rows, columns, inner,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=True):
        first = tile // (GROUP * tiles_n) * GROUP
        size = min(tiles_m - first, GROUP)
        i = (first + tile % size) * BLOCK_M
        j = tile % (GROUP * tiles_n) // size * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(tl.cdiv(inner, BLOCK_K)):
            total = tl.dot(x.load([i, k * BLOCK_K]), y.load([k * BLOCK_K, j]), total)
        z.store([i, j], total.to(z.dtype))


def product(x, y):
    """x @ y of f16 or bf16 whose rows are multiples of 16 bytes."""
    z = torch.empty(x.shape[0], y.shape[1], device=x.device, dtype=x.dtype)
    programs = torch.cuda.get_device_properties(x.device).multi_processor_count
    # The blocks are set before each launch.
    arrays = [
        TensorDescriptor.from_tensor(array, block)
        for array, block in ((x, [128, 64]), (y, [64, 128]), (z, [128, 128]))
    ]
    product_kernel[(programs,)](*arrays, x.shape[0], y.shape[1], x.shape[1], PROGRAMS=programs)
    return z


@triton.jit
def visit_keys(
    total, sums, largest, q, keys, values, row, begin, end, first, scale,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    at_q, at_k = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    for start in tl.range(begin, end, BLOCK_N):
        scores = tl.dot(q, keys.load([row + start, 0]).T) * scale
        if CAUSAL:
            scores = tl.where(at_q[:, None] >= start + at_k[None, :], scores, -1.0e6)
        high = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.math.exp2(scores - high[:, None])
        decay = tl.math.exp2(largest - high)
        sums = sums * decay + tl.sum(weights, 1)
        total = total * decay[:, None]
        total = tl.dot(weights.to(values.dtype), values.load([row + start, 0]), total)
        largest = high
    return total, sums, largest


@triton.jit
def forward_kernel(
    queries, keys, values, out, log2_sums, scale, length,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    first, row = tl.program_id(0) * BLOCK_M, tl.program_id(1) * length
    q = queries.load([row + first, 0])
    total = tl.zeros((BLOCK_M, DIM), tl.float32)
    sums = tl.full((BLOCK_M,), 0.0, tl.float32)
    largest = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    whole = first if CAUSAL else length
    total, sums, largest = visit_keys(
        total, sums, largest, q, keys, values, row, 0, whole, first, scale, False, BLOCK_M, BLOCK_N
    )
    if CAUSAL:
        total, sums, largest = visit_keys(
            total, sums, largest, q, keys, values, row, first, first + BLOCK_M, first, scale,
            True, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    out.store([row + first, 0], (total / sums[:, None]).to(out.dtype))
    tl.store(log2_sums + row + first + tl.arange(0, BLOCK_M), largest + tl.math.log2(sums))


@triton.jit
def keys_kernel(
    queries, keys, values, douts, d_keys, d_values, log2_sums, deltas, scale, factor, length,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    first, row = tl.program_id(0) * BLOCK_N, tl.program_id(1) * length
    k, v = keys.load([row + first, 0]), values.load([row + first, 0])
    dk, dv = tl.zeros((BLOCK_N, DIM), tl.float32), tl.zeros((BLOCK_N, DIM), tl.float32)
    at_k, at_q = first + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M)
    for start in tl.range(first if CAUSAL else 0, length, BLOCK_M):
        q, d_out = queries.load([row + start, 0]), douts.load([row + start, 0])
        log2_sum = tl.load(log2_sums + row + start + at_q)
        delta = tl.load(deltas + row + start + at_q)
        weights = tl.math.exp2(tl.dot(k, q.T) * scale - log2_sum[None, :])
        if CAUSAL:
            weights = tl.where(start + at_q[None, :] >= at_k[:, None], weights, 0.0)
        dv = tl.dot(weights.to(q.dtype), d_out, dv)
        d_scores = weights * (tl.dot(v, d_out.T) - delta[None, :])
        dk = tl.dot(d_scores.to(q.dtype), q, dk)
    d_keys.store([row + first, 0], (dk * factor).to(d_keys.dtype))
    d_values.store([row + first, 0], dv.to(d_values.dtype))


@triton.jit
def queries_kernel(
    queries, keys, values, douts, d_queries, log2_sums, deltas, scale, factor, length,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    first, row = tl.program_id(0) * BLOCK_M, tl.program_id(1) * length
    q, d_out = queries.load([row + first, 0]), douts.load([row + first, 0])
    at_q, at_k = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    log2_sum, delta = tl.load(log2_sums + row + at_q), tl.load(deltas + row + at_q)
    dq = tl.zeros((BLOCK_M, DIM), tl.float32)
    for start in tl.range(0, first + BLOCK_M if CAUSAL else length, BLOCK_N):
        k, v = keys.load([row + start, 0]), values.load([row + start, 0])
        weights = tl.math.exp2(tl.dot(q, k.T) * scale - log2_sum[:, None])
        if CAUSAL:
            weights = tl.where(at_q[:, None] >= start + at_k[None, :], weights, 0.0)
        d_scores = weights * (tl.dot(d_out, v.T) - delta[:, None])
        dq = tl.dot(d_scores.to(k.dtype), k, dq)
    d_queries.store([row + first, 0], (dq * factor).to(d_queries.dtype))


# Blocks of rows and columns, warps and stages that are tried for each kernel.
FORWARD = ((128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (128, 128, 8, 3), (64, 64, 4, 3))
BACKWARD = ((64, 128, 8, 2), (64, 64, 4, 2), (32, 128, 4, 3), (64, 128, 4, 2), (128, 64, 8, 2))


@functools.cache
def choices():
    return {}


def launch(kernel, tried, rows_of, arrays, scalars, causal, dim, length, heads, over_keys=False):
    """Launches a kernel with the fastest blocks of those that its shapes and the GPU allow.
    `rows_of`: for each array whether its tiles are blocks of queries (else of keys)."""

    def run(blocks):
        m, n, warps, stages = blocks
        described = [
            array if of is None else TensorDescriptor.from_tensor(array, [m if of else n, dim])
            for array, of in zip(arrays, rows_of, strict=True)
        ]
        grid = (length // (n if over_keys else m), heads)
        kernel[grid](
            *described, *scalars, length, CAUSAL=causal, DIM=dim, BLOCK_M=m, BLOCK_N=n,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip

    key = (kernel.fn.__name__, causal, dim, length, heads)
    if key not in choices():
        times = {}
        for blocks in tried:
            m, n = blocks[:2]
            # Diagonals end with the blocks that they cross.
            if length % m or length % n or (causal and (n % m if over_keys else m % n)):
                continue
            try:
                times[blocks] = triton.testing.do_bench(lambda b=blocks: run(b), warmup=5, rep=20)
            except triton.runtime.errors.OutOfResources:
                continue
        if not times:
            raise ValueError(f"{key[0]} has no blocks for {length} queries and keys")
        choices()[key] = min(times, key=times.get)
    run(choices()[key])


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        batch, heads, length, dim = q.shape
        if k.shape != q.shape or v.shape != q.shape:
            raise ValueError("Triton's kernel has as many keys as queries, and as many heads")
        factor = dim**-0.5
        rows = [x.contiguous().view(-1, dim) for x in (q, k, v)]
        out = torch.empty_like(rows[0])
        log2_sums = torch.empty(rows[0].shape[0], device=q.device)
        launch(
            forward_kernel, FORWARD, (True, False, False, True, None), [*rows, out, log2_sums],
            (factor * LOG2_E,), causal, dim, length, batch * heads,
        )  # fmt: skip
        ctx.save_for_backward(*rows, out, log2_sums)
        ctx.sizes = (q.shape, causal, factor)
        return out.view(q.shape)

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, out, log2_sums = ctx.saved_tensors
        shape, causal, factor = ctx.sizes
        batch, heads, length, dim = shape
        d_out = d_out.contiguous().view(-1, dim)
        deltas = (out.float() * d_out.float()).sum(1)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        scalars, sizes = (factor * LOG2_E, factor), (causal, dim, length, batch * heads)
        launch(
            keys_kernel, BACKWARD, (True, False, False, True, False, False, None, None),
            [q, k, v, d_out, dk, dv, log2_sums, deltas], scalars, *sizes, over_keys=True,
        )  # fmt: skip
        launch(
            queries_kernel, [(n, m, *rest) for m, n, *rest in BACKWARD],
            (True, False, False, True, True, None, None),
            [q, k, v, d_out, dq, log2_sums, deltas], scalars, *sizes,
        )  # fmt: skip
        return dq.view(shape), dk.view(shape), dv.view(shape), None


def attention(q, k, v, causal):
    """softmax(q k^T / sqrt(d)) v over (batch, heads, length, d), with gradients."""
    return Attention.apply(q, k, v, causal)
