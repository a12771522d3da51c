// Lists of key blocks built on the device, from diagonals, segment ids and packed sequences.
//
// One warp per tile of 64 x warpgroups query rows, (q_tiles, batches) of them. A warpgroup's strip
// of 64 rows sees a block of 64 keys in full when both hold one and the same id and the diagonals
// pass by, not at all when the ranges of their ids are disjoint or the diagonals cut it off, else
// in part: ids in any order are right, sorted ones are fast.
#pragma once

#include "attention/sm90/forward_parameters.h"
#include "cuda/device/ptx/types.cuh"

namespace tw::attn {

struct IdRange {
    int low, high;
};

/// Range of ids[first, last], which may be empty, over the lanes of a warp or, `kLane`, by one of
/// them.
template <bool kLane>
TW_DEVICE IdRange id_range(const int* ids, int first, int last) {
    constexpr int kMost = 0x7fffffff, kLeast = -kMost - 1;
    IdRange range{kMost, kLeast};
    for (int i = first + (kLane ? 0 : static_cast<int>(threadIdx.x)); i <= last;
         i += kLane ? 1 : 32) {
        const int id = __ldg(ids + i);
        range.low = min(range.low, id);
        range.high = max(range.high, id);
    }
    if constexpr (!kLane) {
        range.low = __reduce_min_sync(~0u, range.low);
        range.high = __reduce_max_sync(~0u, range.high);
    }
    return range;
}

}  // namespace tw::attn

extern "C" __global__ void __launch_bounds__(32, 1)
    attention_lists(const __grid_constant__ tw::attn::ListParameters p) {
    using namespace tw;
    using namespace tw::attn;
    const int index = blockIdx.y * p.q_tiles + blockIdx.x, lane = threadIdx.x;
    const int block_m = 64 * p.warpgroups;
    // Later tiles first: they are the longer ones under a causal mask.
    int q_tile = p.q_tiles - 1 - static_cast<int>(blockIdx.x), sequence = blockIdx.y;
    SequenceRows rows{0, p.q_len, 0, p.kv_len};
    if (p.packed > 0) {
        // Sequences one after the other, each with its own tiles.
        int tiles_before = 0, tiles = 0;
        for (sequence = 0; sequence < p.packed; ++sequence) {
            tiles = (p.q_starts[sequence + 1] - p.q_starts[sequence] + block_m - 1) / block_m;
            if (static_cast<int>(blockIdx.x) < tiles_before + tiles) break;
            tiles_before += tiles;
        }
        if (sequence == p.packed) {
            if (lane == 0) p.tiles[index] = {-1, 0, 0, 0};
            return;
        }
        q_tile = tiles_before + tiles - 1 - static_cast<int>(blockIdx.x);
        rows = {p.q_starts[sequence], p.q_starts[sequence + 1] - p.q_starts[sequence],
                p.kv_starts[sequence], p.kv_starts[sequence + 1] - p.kv_starts[sequence]};
        if (lane == 0) p.sequences[index] = rows;
    }
    const i64 batch = p.packed > 0 ? 0 : blockIdx.y;
    const int* const q_ids =
        p.segments.query == nullptr ? nullptr : p.segments.query + batch * p.q_len + rows.q_begin;
    const int* const kv_ids = p.segments.key + batch * p.kv_len + rows.kv_begin;

    constexpr int kMostStrips = 3;
    IdRange of_queries[kMostStrips];
    for (int w = 0; w < kMostStrips && q_ids != nullptr; ++w) {
        const int first = q_tile * block_m + 64 * w;
        of_queries[w] = id_range<false>(q_ids, first, min(first + 63, rows.q_len - 1));
    }

    MaskEntry* const entries = p.entries + static_cast<i64>(index) * p.blocks;
    const int blocks = (rows.kv_len + 63) / 64;
    int count = 0;
    for (int round = 0; round < (blocks + 31) / 32; ++round) {
        const int block = blocks - 1 - (round * 32 + lane);  // from right to left
        int states = 0;
        if (block >= 0) {
            const int k_first = 64 * block, k_last = k_first + 63;
            IdRange of_keys{0, 0};
            if (q_ids != nullptr) {
                of_keys = id_range<true>(kv_ids, k_first, min(k_last, rows.kv_len - 1));
            }
            for (int w = 0; w < p.warpgroups; ++w) {
                const int q_first = q_tile * block_m + 64 * w;
                const int q_last = min(q_first + 63, rows.q_len - 1);
                bool dead = q_last < q_first || k_first > q_last + p.upper_diagonal ||
                            min(k_last, rows.kv_len - 1) < q_first + p.lower_diagonal;
                bool full = k_last < rows.kv_len && k_last <= q_first + p.upper_diagonal &&
                            k_first >= q_last + p.lower_diagonal;
                if (q_ids != nullptr) {
                    const IdRange ids = of_queries[w];
                    dead |= of_keys.low > ids.high || of_keys.high < ids.low;
                    full &= of_keys.low == of_keys.high && ids.low == ids.high &&
                            of_keys.low == ids.low;
                }
                const int state = dead ? kBlockDead : full ? kBlockFull : kBlockPartial;
                states |= state << 2 * w;
            }
        }
        const u32 listed = __ballot_sync(~0u, states != 0);
        if (states != 0) {
            const int place = count + __popc(listed & ((1u << lane) - 1));
            entries[place] = {block, 1, states, -1};
        }
        count += __popc(listed);
    }
    if (lane == 0) {
        if (count == 0) entries[count++] = {0, 1, 0, -1};  // every tile stores its results
        p.tiles[index] = {q_tile, static_cast<int>(static_cast<i64>(index) * p.blocks), count,
                          sequence};
    }
}
