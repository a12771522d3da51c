// Gradients of arrays that a score mod captures: from the threads' sums to memory.
#pragma once

#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/types.cuh"

namespace twd::attn {

/// Where the sums of a warp are stored, for one (batch, head) and tile of keys.
struct SumPlace {
    i64 tile;  ///< index among the sums of tiles, one per warp
    i64 key;   ///< index of this thread's first key among the sums of keys
    int keys;  ///< number of keys from that one to the last
};

/// A sum over all the warp's pairs, stored separately so that the total is added in one order.
TW_DEVICE void add_tile_sum(float sum, u64 sums, const SumPlace& at) {
    TW_UNROLL
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (ptx::lane_index() == 0) reinterpret_cast<float*>(sums)[at.tile] = sum;
}

/// Sums of this thread's two keys over the queries of its quad.
TW_DEVICE void add_row_sums(const float (&sum)[2], u64 sums, const SumPlace& at) {
    TW_UNROLL
    for (int r = 0; r < 2; ++r) {
        float total = sum[r] + __shfl_xor_sync(~0u, sum[r], 1);
        total += __shfl_xor_sync(~0u, total, 2);
        if (ptx::lane_index() % 4 == 0 && 8 * r < at.keys) {
            reinterpret_cast<float*>(sums)[at.key + 8 * r] = total;
        }
    }
}

/// Sums of this thread's two columns over the warp's keys: adds them to the array and resets them
/// to 0 for the next columns.
TW_DEVICE void add_column_sums(float (&sum)[2], float* array, i64 first, i64 second) {
    TW_UNROLL
    for (int e = 0; e < 2; ++e) {
        float total = sum[e];
        TW_UNROLL
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
