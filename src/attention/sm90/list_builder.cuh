// Lists of blocks built on the device, from diagonals, segment ids and packed sequences.
//
// One warp per tile of 64 x strips rows, (row_tiles, batches) of them; rows are queries for the
// forward kernel, keys for the backward. A strip of 64 rows sees a block of columns in full if both
// hold only one and the same id and no diagonal crosses it, not at all if the ranges of their ids
// are disjoint or the diagonals exclude it, and otherwise in part. Ids in any order give correct
// lists; sorted ones make this fast.
#pragma once

#include "attention/sm90/mask_parameters.h"
#include "attention/sm90/packed_sequences.cuh"
#include "attention/sm90/pipeline.cuh"
#include "cuda/device/ptx/types.cuh"

namespace twd::attn {

constexpr int kMostStrips = 3;

struct IdRange {
    int low, high;
};

/// The range of ids[first, last], which may be empty: computed by a warp or, with kLane, by one
/// lane.
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

/// The ranges of ids in the strips of a tile.
struct TileIds {
    IdRange strips[kMostStrips];
};

/// The two sides of the scores of one sequence, or of a whole batch.
struct Pairs {
    const ListParameters& p;
    const int *row_ids, *column_ids;  ///< from the sequence's first row on; null: no ids
    int rows, columns;                ///< with lengths, keys only up to there

    /// For a tile, computed by all lanes.
    TW_DEVICE TileIds ids_of_tile(int tile) const {
        TileIds result;
        for (int s = 0; s < p.strips && row_ids != nullptr; ++s) {
            const int first = (tile * p.strips + s) * 64;
            result.strips[s] = id_range<false>(row_ids, first, min(first + 63, rows - 1));
        }
        return result;
    }

    /// For a block, computed by this lane.
    TW_DEVICE IdRange ids_of_block(int block) const {
        if (row_ids == nullptr) return {0, 0};
        const int first = block * p.block_columns;
        return id_range<true>(column_ids, first, min(first + p.block_columns, columns) - 1);
    }

    /// What the strips of a tile see of a block, two bits each.
    TW_DEVICE int states(int tile, const TileIds& of_tile, int block,
                         const IdRange& of_block) const {
        const int c_first = block * p.block_columns, c_last = c_first + p.block_columns - 1;
        int result = 0;
        for (int s = 0; s < p.strips; ++s) {
            const int r_first = (tile * p.strips + s) * 64, r_last = min(r_first + 63, rows - 1);
            bool dead = r_last < r_first || c_first > r_last + p.upper_diagonal ||
                        min(c_last, columns - 1) < r_first + p.lower_diagonal;
            bool full = c_last < columns && c_last <= r_first + p.upper_diagonal &&
                        c_first >= r_last + p.lower_diagonal;
            // Keys past the end must not take part in sums over keys.
            if (p.rows_are_keys) full &= r_last == r_first + 63;
            if (row_ids != nullptr) {
                const IdRange ids = of_tile.strips[s];
                dead |= of_block.low > ids.high || of_block.high < ids.low;
                full &=
                    of_block.low == of_block.high && ids.low == ids.high && of_block.low == ids.low;
            }
            const int state = dead ? kBlockDead : full ? kBlockFull : kBlockPartial;
            result |= state << 2 * s;
        }
        return result;
    }

    /// Does a row attend to any of the columns [begin, end)? With kOfColumn: does any of these rows
    /// attend to a column?
    template <bool kOfColumn>
    TW_DEVICE bool attended(int index, int begin, int end) const {
        // Diagonals bound column - row.
        const int lower = kOfColumn ? index - p.upper_diagonal : index + p.lower_diagonal;
        const int upper = kOfColumn ? index - p.lower_diagonal : index + p.upper_diagonal;
        begin = max(begin, lower);
        end = min(end, upper + 1);
        if (begin >= end) return false;
        const int* const others = kOfColumn ? row_ids : column_ids;
        const int id = __ldg((kOfColumn ? column_ids : row_ids) + index);
        // If ids are sorted, a match shows in one of the first three comparisons.
        if (__ldg(others + min(max(index, begin), end - 1)) == id) return true;
        if (__ldg(others + end - 1) == id) return true;
        for (int other = begin; other < end; ++other) {
            if (__ldg(others + other) == id) return true;
        }
        return false;
    }
};

/// Which of the 64 keys of a block some row of the tile attends to; computed by all lanes.
TW_DEVICE u64 live_keys_of_block(const Pairs& pairs, int tile, const TileIds& of_tile, int block) {
    const int tile_rows = 64 * pairs.p.strips, first = tile * tile_rows;
    u64 live = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int key = block * 64 + half * 32 + threadIdx.x;
        bool found = false;
        if (key < pairs.columns) {
            const int id = __ldg(pairs.column_ids + key);
            bool possible = false;
            for (int s = 0; s < pairs.p.strips; ++s) {
                possible |= id >= of_tile.strips[s].low && id <= of_tile.strips[s].high;
            }
            found =
                possible && pairs.attended<true>(key, first, min(first + tile_rows, pairs.rows));
        }
        live |= static_cast<u64>(__ballot_sync(~0u, found)) << 32 * half;
    }
    return live;
}

/// Which keys of a strip of 64 some query attends to; computed by all lanes. Only queries of listed
/// blocks may, the first and last of which are in `begin` and `end`.
TW_DEVICE u64 live_keys_of_strip(const Pairs& pairs, int first, int begin, int end) {
    u64 live = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int key = first + half * 32 + threadIdx.x;
        const bool found =
            key < pairs.rows &&
            pairs.attended<false>(key, begin * pairs.p.block_columns,
                                  min((end + 1) * pairs.p.block_columns, pairs.columns));
        live |= static_cast<u64>(__ballot_sync(~0u, found)) << 32 * half;
    }
    return live;
}

}  // namespace twd::attn

namespace twd::attn {

TW_DEVICE int keys_of(const ListParameters& p, int index, int most) {
    if (p.lengths.data == nullptr) return most;
    return p.lengths.bytes == 8 ? keys_of<8>(p.lengths.data, index, most)
                                : keys_of<4>(p.lengths.data, index, most);
}

}  // namespace twd::attn

extern "C" __global__ void __launch_bounds__(32, 1)
    attention_lists(const __grid_constant__ twd::attn::ListParameters p) {
    using namespace twd;
    using namespace twd::attn;
    const int index = blockIdx.y * p.row_tiles + blockIdx.x, lane = threadIdx.x;
    const int place = blockIdx.x, tile_rows = 64 * p.strips;
    int sequence = blockIdx.y, first_place = 0, row_begin = 0, column_begin = 0;
    int rows = p.rows.length, columns = p.columns.length, tiles = p.row_tiles;
    if (p.packed > 0) {
        // Sequences follow each other, each with its own tiles and blocks.
        const PackedPlace at = find_packed(p.rows.starts, p.columns.starts, p.packed, place,
                                           tile_rows, p.block_columns);
        sequence = at.sequence;
        if (sequence == p.packed) {
            if (lane == 0) {  // the kernels read all three before they look at the tile
                p.tiles[index] = {-1, 0, 0, 0};
                p.sequences[index] = {0, 0, 0, 0};
                p.first_q_blocks[index] = 0;
            }
            return;
        }
        first_place = at.first_place;
        row_begin = p.rows.starts[sequence];
        rows = p.rows.starts[sequence + 1] - row_begin;
        column_begin = p.columns.starts[sequence];
        columns = p.columns.starts[sequence + 1] - column_begin;
        tiles = (rows + tile_rows - 1) / tile_rows;
        // Keys past a length still have gradients, which are zeros.
        if (!p.rows_are_keys) columns = keys_of(p, sequence, columns);
        if (lane == 0) {
            SequenceRows of_sequence{row_begin, rows, column_begin, columns};
            if (p.rows_are_keys) of_sequence = {column_begin, columns, row_begin, rows};
            p.sequences[index] = of_sequence;
            p.first_q_blocks[index] = at.first_block;
        }
    } else if (!p.rows_are_keys) {
        columns = keys_of(p, sequence, columns);
    }
    if (p.rows_are_keys) rows = keys_of(p, sequence, rows);
    // Longer tiles of a causal mask come first: the last queries or the first keys.
    const int tile = p.rows_are_keys ? place - first_place : first_place + tiles - 1 - place;
    const i64 batch = p.packed > 0 ? 0 : blockIdx.y;
    Pairs pairs{p, nullptr, nullptr, rows, columns};
    if (p.rows.ids != nullptr) {
        pairs.row_ids = p.rows.ids + batch * p.rows.length + row_begin;
        pairs.column_ids = p.columns.ids + batch * p.columns.length + column_begin;
    }
    const TileIds of_tile = pairs.ids_of_tile(tile);

    MaskEntry* const entries = p.entries + static_cast<i64>(index) * p.blocks;
    const int blocks = (columns + p.block_columns - 1) / p.block_columns;
    int count = 0, first_listed = blocks, last_listed = -1;
    const bool finds_live = p.live != nullptr && p.rows.ids != nullptr;
    for (int chunk = 0; chunk < (blocks + 31) / 32; ++chunk) {
        const int block = blocks - 1 - (chunk * 32 + lane);  // from right to left
        int states = 0;
        IdRange of_block{0, 0};
        if (block >= 0) {
            of_block = pairs.ids_of_block(block);
            states = pairs.states(tile, of_tile, block, of_block);
        }
        int predecessor = 0;
        if (p.ordered) {
            // The nearest earlier tile that sees the block.
            for (int before = tile - 1; before >= 0; --before) {
                const bool searching = states != 0 && predecessor == 0;
                if (!__any_sync(~0u, searching)) break;
                const TileIds of_before = pairs.ids_of_tile(before);
                if (searching && pairs.states(before, of_before, block, of_block) != 0) {
                    predecessor = first_place + before + 1;
                }
            }
        }
        const u32 listed = __ballot_sync(~0u, states != 0);
        if (states != 0) {
            const int at = count + __popc(listed & ((1u << lane) - 1));
            entries[at] = {block, 1, states | predecessor << kPredecessorShift, -1};
        }
        if (finds_live && listed != 0) {
            last_listed = max(last_listed, blocks - 1 - (chunk * 32 + __ffs(listed) - 1));
            first_listed = min(first_listed, blocks - 1 - (chunk * 32 + 31 - __clz(listed)));
            for (u32 left = p.rows_are_keys ? 0 : listed; left != 0; left &= left - 1) {
                const int of_lane = __ffs(left) - 1,
                          at = count + __popc(listed & ((1u << of_lane) - 1));
                const u64 live =
                    live_keys_of_block(pairs, tile, of_tile, blocks - 1 - (chunk * 32 + of_lane));
                if (live != ~0ull && lane == of_lane) entries[at].states |= kHidesSome;
                if (lane == of_lane) p.live[entries + at - p.entries] = live;
            }
        }
        count += __popc(listed);
    }
    if (finds_live && p.rows_are_keys) {
        for (int s = 0; s < 2; ++s) {
            const u64 live = s < p.strips ? live_keys_of_strip(pairs, (tile * p.strips + s) * 64,
                                                               first_listed, last_listed)
                                          : 0;
            if (lane == 0) p.live[2 * index + s] = live;
        }
    }
    if (lane == 0) {
        // In the forward pass every tile stores its results, so it visits at least one block.
        if (count == 0 && !p.rows_are_keys) entries[count++] = {0, 1, 0, -1};
        p.tiles[index] = {tile, static_cast<int>(static_cast<i64>(index) * p.blocks), count,
                          sequence};
        // Readers also look at the entry after the last one.
        const bool last = index + 1 == static_cast<int>(gridDim.x * gridDim.y);
        if (count < p.blocks || last) entries[count] = {0, 0, 0, -1};
    }
}

/// The rows of each block of packed query rows, one thread per block; blocks past the last have
/// none.
extern "C" __global__ void __launch_bounds__(128)
    attention_block_rows(twd::attn::BlockRows* out, const int* starts, int packed, int block_rows,
                         int blocks) {
    const int block = blockIdx.x * 128 + threadIdx.x;
    const twd::attn::BlockRows rows = twd::attn::rows_of_block(starts, packed, block_rows, block);
    if (block < blocks) out[block] = rows;
}
