// Joins the results of the parts into which the forward kernel splits a tile's keys.
#pragma once

#include "attention/sm90/forward_parameters.h"
#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "forward_config.cuh"

namespace tw::attn {

/// One warp per row, eight columns a lane: out = sum of exp(lse of a part - lse) * its out. The
/// sink is one more part, without a value.
TW_DEVICE void combine_parts(const ForwardParameters& p) {
    constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
    const float kNone = __int_as_float(0xff800000);
    const i64 rows = static_cast<i64>(p.batch_heads) * kGroup * p.q_len;
    const i64 row = static_cast<i64>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    const int heads = p.heads * kGroup;
    const int query = row % p.q_len;
    const int batch_head = row / p.q_len, batch = batch_head / heads;
    const int head = batch_head - batch * heads;
    const int lane = threadIdx.x % 32;

    float largest = kSinks ? p.sinks[head] : kNone;
    for (int split = 0; split < p.splits; ++split) {
        const float lse = p.part_lse[split * rows + row];
        largest = lse <= largest ? largest : lse;  // NaN stays
    }
    const float base = largest == kNone ? 0.0f : largest;
    float total = kSinks ? ptx::exp2_approx((p.sinks[head] - base) * kLog2e) : 0.0f;
    float sums[8] = {};
    for (int split = 0; split < p.splits; ++split) {
        const i64 at = split * rows + row;
        const float weight = ptx::exp2_approx((p.part_lse[at] - base) * kLog2e);
        total += weight;
        if (8 * lane >= kValueDim) continue;
        const float4* const part =
            reinterpret_cast<const float4*>(p.part_out + at * kValueDim + 8 * lane);
        const float4 low = part[0], high = part[1];
        const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] = fmaf(weight, values[i], sums[i]);
    }
    const float inverse = total > 0 ? 1 / total : total;
    if (lane == 0) {
        p.lse[row] = total == 0 ? kNone : base + ptx::log2_approx(total) * kLn2;
    }
    if (8 * lane >= kValueDim) return;
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        words[i] = ptx::pack(Element{}, sums[2 * i] * inverse, sums[2 * i + 1] * inverse);
    }
    u16* const out = static_cast<u16*>(p.out) + batch * p.out_batch_stride +
                     head * p.out_head_stride + query * p.out_row_stride + 8 * lane;
    *reinterpret_cast<uint4*>(out) = make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace tw::attn

extern "C" __global__ void __launch_bounds__(256)
    attention_forward_combine(const __grid_constant__ tw::attn::ForwardParameters p) {
    tw::attn::combine_parts(p);
}
