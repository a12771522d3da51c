// Joins the results of the splits into which the forward kernel cuts a tile's keys.
#pragma once

#include "attention/sm90/forward_layout.cuh"
#include "attention/sm90/online_softmax.cuh"
#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/memory.cuh"

namespace twd::attn {

/// One warp per row. A split is weighted by its sum times exp2(its reference - the largest
/// reference); the sink is one more split, without a value. Rows of tiles that are not split
/// already have their results.
TW_DEVICE void combine_splits(const ForwardParameters& p) {
    const float kNone = __int_as_float(0xff800000);
    const i64 rows = static_cast<i64>(p.batch_heads) * kGroup * p.q_len;
    const i64 row = static_cast<i64>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    const int heads = p.heads * kGroup;
    const int query = row % p.q_len;
    const int batch_head = row / p.q_len, batch = batch_head / heads;
    const int head = batch_head - batch * heads;
    const int lane = threadIdx.x % 32;

    const int q_tile = (query * kGroup + head % kGroup) / kBlockM;
    const int tile = batch_head / kGroup * p.q_tiles + p.q_tiles - 1 - q_tile;
    const int first = cta_of_slot(tile * p.slots, p);
    const int splits = cta_of_slot((tile + 1) * p.slots - 1, p) - first + 1;
    if (splits == 1) return;

    const float sink = kSinks ? bounded_exponent(p.sinks[head], kLog2E) : kNone;
    float largest = sink;
    for (int split = lane; split < splits; split += 32) {
        largest = fmaxf(largest, p.split_sums[split * rows + row].reference);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
    }
    const float base = largest == kNone ? 0.0f : largest;
    float total = kSinks ? ptx::exp2_approx(sink - base) : 0.0f;
    constexpr int kVectors = (kValueDim + 127) / 128;  // four columns a lane each
    float4 sums[kVectors] = {};
    for (int some = 0; some < splits; some += 32) {
        const SplitSums own = some + lane < splits ? p.split_sums[(some + lane) * rows + row]
                                                   : SplitSums{kNone, 0.0f};
        const float weights = own.sum * ptx::exp2_approx(own.reference - base);
        // Keeps loads of several splits in flight.
#pragma unroll 8
        for (int i = 0; i < min(32, splits - some); ++i) {
            const float weight = __shfl_sync(~0u, weights, i);
            total += weight;
            const float* const out = p.split_out + ((some + i) * rows + row) * kValueDim;
#pragma unroll
            for (int v = 0; v < kVectors; ++v) {
                const int column = 128 * v + 4 * lane;
                if (column >= kValueDim) continue;
                const float4 values = *reinterpret_cast<const float4*>(out + column);
                sums[v].x = fmaf(weight, values.x, sums[v].x);
                sums[v].y = fmaf(weight, values.y, sums[v].y);
                sums[v].z = fmaf(weight, values.z, sums[v].z);
                sums[v].w = fmaf(weight, values.w, sums[v].w);
            }
        }
    }
    const float inverse = total > 0 ? 1 / total : total;
    if (lane == 0) {
        p.lse[row] = total == 0 ? kNone : score_of_exponent(base + ptx::log2_approx(total));
    }
    u16* const out = static_cast<u16*>(p.out) + batch * p.out_batch_stride +
                     head * p.out_head_stride + query * p.out_row_stride;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
        const int column = 128 * v + 4 * lane;
        if (column >= kValueDim) continue;
        *reinterpret_cast<uint2*>(out + column) =
            make_uint2(ptx::pack(Element{}, sums[v].x * inverse, sums[v].y * inverse),
                       ptx::pack(Element{}, sums[v].z * inverse, sums[v].w * inverse));
    }
}

}  // namespace twd::attn

extern "C" __global__ void __launch_bounds__(256)
    attention_forward_combine(const __grid_constant__ twd::attn::ForwardParameters p) {
    twd::attn::combine_splits(p);
}
