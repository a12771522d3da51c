// Gradients of arrays that a score mod captures: from sums of threads to memory.
#pragma once

#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/types.cuh"

namespace twd::attn {

/// Where the sums of a warp go, for one (batch, head) and tile of keys.
struct SumPlace {
    i64 tile;  ///< among the sums of tiles, a number per warp
    i64 key;   ///< of this thread's first key among the sums of keys
    int keys;  ///< from that one to the last
};

/// A sum of all the warp's pairs: a store of its own, so that the total has one order.
TW_DEVICE void add_tile_sum(float sum, u64 sums, const SumPlace& at) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (ptx::lane_index() == 0) reinterpret_cast<float*>(sums)[at.tile] = sum;
}

/// Sums of this thread's two keys over its quad's queries.
TW_DEVICE void add_row_sums(const float (&sum)[2], u64 sums, const SumPlace& at) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float total = sum[r] + __shfl_xor_sync(~0u, sum[r], 1);
        total += __shfl_xor_sync(~0u, total, 2);
        if (ptx::lane_index() % 4 == 0 && 8 * r < at.keys) {
            reinterpret_cast<float*>(sums)[at.key + 8 * r] = total;
        }
    }
}

/// Sums of this thread's two columns over the warp's keys, added to the array; the next columns
/// start from 0.
TW_DEVICE void add_column_sums(float (&sum)[2], float* array, i64 first, i64 second) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        float total = sum[e];
#pragma unroll
        for (int offset = 16; offset > 2; offset /= 2) {
            total += __shfl_xor_sync(~0u, total, offset);
        }
        const i64 place = e == 0 ? first : second;
        if (ptx::lane_index() < 4 && place >= 0 && total != 0.0f) {
            ptx::reduce_add(array + place, total);
        }
        sum[e] = 0;
    }
}

}  // namespace twd::attn
