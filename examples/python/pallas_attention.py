"""Attention in the form of JAX's Pallas `attention` module: one forward kernel, one that computes
delta, and one backward kernel with two scans. Arrays are (batch, sequence, heads, dim).

Programs should use `tw.flex_attention`; this shows the language on a well-known kernel.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

import tilewright as tw

#: Finite, so that a fully masked row gives an average and not NaN.
MASK_VALUE = -0.7 * float(np.finfo(np.float32).max)
LOG2_E = 1.44269504088896340736
F32 = np.float32


class State(NamedTuple):
    """The forward kernel's carry over blocks of keys."""

    max: tw.Tile
    sum: tw.Tile
    out: tw.Tile


def scores(q, k, first_q, first_k, segment_ids, *, sm_scale, causal, kv_length):
    """Masked scores of a block of queries against a block of keys, to base 2."""
    block_q, block_k = q.shape[0], k.shape[0]
    s = tw.dot(q, k, trans_b=True) * (sm_scale * LOG2_E)
    rows = (first_q + tw.arange(block_q, dtype=np.int64))[:, None]
    columns = (first_k + tw.arange(block_k, dtype=np.int64))[None, :]
    mask = columns < kv_length
    if causal:
        mask = mask & (columns <= rows)
    if segment_ids is not None:
        q_ids = tw.load(segment_ids, tw.ds(first_q, block_q), other=0)
        k_ids = tw.load(segment_ids, tw.ds(first_k, block_k), other=0)
        mask = mask & (q_ids[:, None] == k_ids[None, :])
    return tw.where(mask, s, MASK_VALUE)


@tw.kernel
def mha_forward(q, k, v, segment_ids, out, lse, *, block_q, block_k, sm_scale, causal, kv_length):
    start = tw.program_id(0)
    first_q = start * block_q
    queries = tw.load(q, other=0)
    dim = queries.shape[1]
    masked = functools.partial(scores, sm_scale=sm_scale, causal=causal, kv_length=kv_length)

    def step(i, state):
        first_k = i * block_k
        block = tw.ds(first_k, block_k)
        keys = tw.load(k, block, other=0)
        s = masked(queries, keys, first_q, first_k, segment_ids)
        largest = tw.maximum(state.max, tw.max(s, 1))
        correction = tw.exp2(state.max - largest)
        p = tw.exp2(s - largest[:, None])
        values = tw.load(v, block, other=0)
        return State(
            largest,
            state.sum * correction + tw.sum(p, 1),
            state.out * correction[:, None] + tw.dot(p.to(values.dtype), values),
        )

    # Key blocks after the last query of the block are never read.
    end = tw.full((), tw.cdiv(kv_length, block_k), np.int64)
    if causal:
        end = tw.minimum(end, tw.cdiv((start + 1) * block_q, block_k))
    first = State(tw.full(block_q, -np.inf), tw.zeros(block_q), tw.zeros((block_q, dim)))
    state = tw.for_loop(0, end, step, first)
    out[...] = (state.out / state.sum[:, None]).to(out.dtype)
    lse[...] = state.max + tw.log2(state.sum)


@tw.kernel
def mha_delta(out, dout, delta):
    delta[...] = tw.sum(tw.load(out, other=0).to(F32) * tw.load(dout, other=0).to(F32), 1)


@tw.kernel
def mha_backward(
    q, k, v, segment_ids, dout, lse, delta, dq, dk, dv,
    *, block_q, block_k, sm_scale, causal, length, kv_length,
):  # fmt: skip
    start = tw.program_id(0)
    dim = q.shape[1]
    blocks_q, blocks_k = tw.cdiv(length, block_q), tw.cdiv(kv_length, block_k)
    masked = functools.partial(scores, sm_scale=sm_scale, causal=causal, kv_length=kv_length)

    def pair(first_q, first_k, queries, keys, values, d_out):
        """P and dS of one pair of blocks; both scans need them."""
        block = tw.ds(first_q, block_q)
        s = masked(queries, keys, first_q, first_k, segment_ids)
        p = tw.exp2(s - tw.load(lse, block, other=np.inf)[:, None])
        dp = tw.dot(d_out, values, trans_b=True)
        ds = p * (dp - tw.load(delta, block, other=0)[:, None]) * sm_scale
        return p.to(v.dtype), ds.to(q.dtype)

    def block_of(ref, first, size):
        return tw.load(ref, tw.ds(first, size), other=0)

    # Scan 1: dK and dV of one block of keys over the blocks of queries that see it.
    @tw.when(start < blocks_k)
    def _():
        first_k = start * block_k
        keys, values = block_of(k, first_k, block_k), block_of(v, first_k, block_k)

        def step(i, sums):
            first_q = i * block_q
            queries, d_out = block_of(q, first_q, block_q), block_of(dout, first_q, block_q)
            p, ds = pair(first_q, first_k, queries, keys, values, d_out)
            return (
                tw.dot(ds, queries, acc=sums[0], trans_a=True),
                tw.dot(p, d_out, acc=sums[1], trans_a=True),
            )

        lower = first_k // block_q if causal else 0
        zeros = (tw.zeros((block_k, dim)), tw.zeros((block_k, dim)))
        d_key, d_value = tw.for_loop(lower, blocks_q, step, zeros)
        dk[tw.ds(first_k, block_k)] = d_key.to(dk.dtype)
        dv[tw.ds(first_k, block_k)] = d_value.to(dv.dtype)

    # Scan 2: dQ of one block of queries over the blocks of keys that it sees.
    @tw.when(start < blocks_q)
    def _():
        first_q = start * block_q
        queries, d_out = block_of(q, first_q, block_q), block_of(dout, first_q, block_q)

        def step(i, total):
            first_k = i * block_k
            keys = block_of(k, first_k, block_k)
            values = block_of(v, first_k, block_k)
            _, ds = pair(first_q, first_k, queries, keys, values, d_out)
            return tw.dot(ds, keys, acc=total)

        upper = tw.full((), blocks_k, np.int64)
        if causal:
            upper = tw.minimum(upper, tw.cdiv(first_q + block_q, block_k))
        total = tw.for_loop(0, upper, step, tw.zeros((block_q, dim)))
        dq[tw.ds(first_q, block_q)] = total.to(dq.dtype)


def _specs(block_q):
    rows = tw.BlockSpec((None, block_q, None, tw.all), lambda i, b, h: (b, i, h, 0))
    whole = tw.BlockSpec((None, tw.all, None, tw.all), lambda i, b, h: (b, 0, h, 0))
    ids = tw.BlockSpec((None, tw.all), lambda i, b, h: (b, 0))
    row_statistics = tw.BlockSpec((None, None, block_q), lambda i, b, h: (b, h, i))
    statistics = tw.BlockSpec((None, None, tw.all), lambda i, b, h: (b, h, 0))
    return rows, whole, ids, row_statistics, statistics


def forward(
    q, k, v, segment_ids=None, *, sm_scale=1.0, causal=False, block_q=128, block_k=128,
    interpret=False,
):  # fmt: skip
    """(out, lse); lse is the residual for the backward pass, to base 2 as in Pallas."""
    batch, length, heads, _ = q.shape
    kv_length = k.shape[1]
    block_q, block_k = min(block_q, length), min(block_k, kv_length)
    rows, whole, ids, row_statistics, _ = _specs(block_q)
    call = tw.call(
        mha_forward,
        grid=(tw.cdiv(length, block_q), batch, heads),
        in_specs=[rows, whole, whole, None if segment_ids is None else ids],
        out_specs=[rows, row_statistics],
        out_shape=(q, tw.ShapeDtype((batch, heads, length), F32)),
        num_stages=2,
        interpret=interpret,
        block_q=block_q,
        block_k=block_k,
        sm_scale=sm_scale,
        causal=causal,
        kv_length=kv_length,
    )
    return call(q, k, v, segment_ids)


def backward(
    q, k, v, segment_ids, out, lse, dout, *, sm_scale=1.0, causal=False, block_q=128, block_k=128
):
    """(dq, dk, dv) from the results of the forward pass."""
    batch, length, heads, _ = q.shape
    kv_length = k.shape[1]
    block_q, block_k = min(block_q, length), min(block_k, kv_length)
    blocks_q, blocks_k = tw.cdiv(length, block_q), tw.cdiv(kv_length, block_k)
    rows, whole, ids, row_statistics, statistics = _specs(block_q)
    preprocess = tw.call(
        mha_delta,
        grid=(blocks_q, batch, heads),
        in_specs=[rows, rows],
        out_specs=row_statistics,
        out_shape=tw.ShapeDtype((batch, heads, length), F32),
    )
    call = tw.call(
        mha_backward,
        # A program handles one block of keys and one of queries, as far as there are any.
        grid=(max(blocks_q, blocks_k), batch, heads),
        in_specs=[
            whole, whole, whole, None if segment_ids is None else ids, whole, statistics, statistics
        ],
        out_specs=[whole, whole, whole],
        out_shape=(q, k, v),
        num_stages=2,
        block_q=block_q,
        block_k=block_k,
        sm_scale=sm_scale,
        causal=causal,
        length=length,
        kv_length=kv_length,
    )  # fmt: skip
    return call(q, k, v, segment_ids, dout, lse, preprocess(out, dout))


def dense(q, k, v, segment_ids=None, dout=None, *, sm_scale=1.0, causal=False, **blocks):
    """The same in f64: (out, dq, dk, dv); gradients are None without dout."""
    q, k, v = (x.astype(np.float64).swapaxes(1, 2) for x in (q, k, v))
    s = q @ k.swapaxes(2, 3) * sm_scale
    i, j = np.ogrid[: s.shape[2], : s.shape[3]]
    if causal:
        s = np.where(j <= i, s, -math.inf)
    if segment_ids is not None:
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        s = np.where(same[:, None], s, -math.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = p @ v
    if dout is None:
        return out.swapaxes(1, 2), None, None, None
    dout = dout.astype(np.float64).swapaxes(1, 2)
    ds = p * (dout @ v.swapaxes(2, 3) - (dout * out).sum(-1, keepdims=True)) * sm_scale
    gradients = ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dout
    return out.swapaxes(1, 2), *(g.swapaxes(1, 2) for g in gradients)


def segments(batch, length):
    """Ids that change every 23 positions."""
    return np.broadcast_to(np.arange(length, dtype=np.int32) // 23, (batch, length)).copy()
