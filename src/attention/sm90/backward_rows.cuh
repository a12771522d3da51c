// The two kernels around the backward kernel that pass once over the query rows.
#pragma once

#include "attention/sm90/backward_layout.cuh"
#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/memory.cuh"

namespace tw::attn {

constexpr int kRowThreads = 256;

TW_DEVICE u16* row_of(const Rows& rows, int batch_head, int row, const BackwardParameters& p) {
    const int batch = batch_head / p.heads, head = batch_head - batch * p.heads;
    return static_cast<u16*>(rows.data) + batch * rows.batch_stride + head * rows.head_stride +
           row * rows.row_stride;
}

/// Sum of the products of eight pairs of elements.
TW_DEVICE float dot8(uint4 a, uint4 b) {
    const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sum += ptx::low(Element{}, x[i]) * ptx::low(Element{}, y[i]);
        sum += ptx::high(Element{}, x[i]) * ptx::high(Element{}, y[i]);
    }
    return sum;
}

/// Eight columns of dQ from their f32 sums.
TW_DEVICE void store8(const float (&sums)[8], int batch_head, int row, int column,
                      const BackwardParameters& p) {
    if (row >= p.q_len) return;
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        words[i] = ptx::pack(Element{}, sums[2 * i] * p.scale, sums[2 * i + 1] * p.scale);
    }
    *reinterpret_cast<uint4*>(row_of(p.grad_query, batch_head, row, p) + column) =
        make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace tw::attn

/// One CTA per (batch, head, block of rows): lse in units of log2, delta = rowsum(dO * out) - dlse,
/// and zeros where dQ is summed. Rows without a key, and rows past the last, get an lse of +inf, so
/// that their P is 0.
extern "C" __global__ void __launch_bounds__(tw::attn::kRowThreads)
    attention_backward_prepare(const __grid_constant__ tw::attn::BackwardParameters p) {
    using namespace tw;
    using namespace tw::attn;
    const int batch_head = blockIdx.x / p.q_blocks, block = blockIdx.x - batch_head * p.q_blocks;
    constexpr int kLanes = 8;  // threads of a row
    const int lane = threadIdx.x % kLanes;
    const i64 padded = static_cast<i64>(blockIdx.x) * kBlockM;
    for (int i = threadIdx.x / kLanes; i < kBlockM; i += kRowThreads / kLanes) {
        const int row = block * kBlockM + i;
        float sum = 0;
        if (row < p.q_len) {
            const u16* const out = row_of(p.out, batch_head, row, p);
            const u16* const grad = row_of(p.grad_out, batch_head, row, p);
            for (int column = 8 * lane; column < kValueDim; column += 8 * kLanes) {
                sum += dot8(ptx::load_once_128(out + column), ptx::load_once_128(grad + column));
            }
        }
#pragma unroll
        for (int offset = kLanes / 2; offset > 0; offset /= 2) {
            sum += __shfl_xor_sync(~0u, sum, offset);
        }
        if (lane == 0) {
            const float kInfinity = __int_as_float(0x7f800000);
            constexpr float kLog2e = 1.4426950408889634f;
            const i64 at = static_cast<i64>(batch_head) * p.q_len + row;
            const float lse = row < p.q_len ? p.lse[at] : -kInfinity;
            const bool empty = lse == -kInfinity;
            const float grad_lse = p.grad_lse != nullptr && !empty ? p.grad_lse[at] : 0.0f;
            p.row_lse[padded + i] = empty ? kInfinity : lse * kLog2e;
            p.row_delta[padded + i] = empty ? 0.0f : sum - grad_lse;
        }
    }
    if (kDeterministic && threadIdx.x < kWarpgroups) {
        p.turns[blockIdx.x * kWarpgroups + threadIdx.x] = 0;
    }
    constexpr u32 kVectors = kWarpgroups * kGradBytes / 16;
    float4* const sums =
        reinterpret_cast<float4*>(p.grad_query_sums) + static_cast<i64>(blockIdx.x) * kVectors;
    for (u32 i = threadIdx.x; i < kVectors; i += kRowThreads) sums[i] = make_float4(0, 0, 0, 0);
}

/// One CTA per (batch, head, block of rows): dQ = scale * sums, from the order of accumulator
/// registers to rows.
extern "C" __global__ void __launch_bounds__(tw::attn::kRowThreads)
    attention_backward_finish(const __grid_constant__ tw::attn::BackwardParameters p) {
    using namespace tw;
    using namespace tw::attn;
    const int batch_head = blockIdx.x / p.q_blocks, block = blockIdx.x - batch_head * p.q_blocks;
    constexpr u32 kVectors = kWarpgroups * kGradBytes / 16;
    const float4* const sums = reinterpret_cast<const float4*>(p.grad_query_sums) +
                               static_cast<i64>(blockIdx.x) * kVectors;
    // A thread gathers two rows of eight columns from the registers of four threads, or of eight
    // for a transposed dQ, whose rows are columns.
    constexpr int kColumnBlocks = kQueryDim / 8;
    for (int i = threadIdx.x; i < kBlockM / 2 * kColumnBlocks; i += kRowThreads) {
        int column, row, next_row;
        float first[8], second[8];
        if constexpr (kGradTransposed) {
            const int quad_lane = i % 4;
            column = i / 4 % kColumnBlocks * 8;
            row = i / 4 / kColumnBlocks * 8 + 2 * quad_lane;
            next_row = row + 1;
            const int warp = column % 64 / 16, half = column / 8 % 2;
            const float2* const source =
                reinterpret_cast<const float2*>(sums + column / 64 * (kVectors / kWarpgroups) +
                                                row / 8 * 128 + warp * 32 + quad_lane);
#pragma unroll
            for (int g = 0; g < 8; ++g) {
                const float2 v = source[8 * g + half];
                first[g] = v.x;
                second[g] = v.y;
            }
        } else {
            column = i % kColumnBlocks * 8;
            const int pair = i / kColumnBlocks;
            row = pair / 8 * 16 + pair % 8;
            next_row = row + 8;
            const float4* const source = sums + row / 64 * (kVectors / kWarpgroups) +
                                         column / 8 * 128 + row % 64 / 16 * 32 + row % 8 * 4;
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                const float4 v = source[t];
                first[2 * t] = v.x;
                first[2 * t + 1] = v.y;
                second[2 * t] = v.z;
                second[2 * t + 1] = v.w;
            }
        }
        store8(first, batch_head, block * kBlockM + row, column, p);
        store8(second, batch_head, block * kBlockM + next_row, column, p);
    }
}
