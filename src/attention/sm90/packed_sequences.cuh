// Which packed sequence a tile or a block belongs to, found by a warp: 32 sequences at a time,
// since the latencies of hundreds of loads, one after the other, would add up.
#pragma once

#include "attention/sm90/mask_parameters.h"
#include "cuda/device/ptx/types.cuh"

namespace twd::attn {

/// The parts of `size` rows, the last one smaller, of this lane's sequence.
struct LaneParts {
    int count;
    int end;  ///< together with those of the lanes before it
};

/// For the sequences from `first` on, one per lane; those past the last one have no parts.
TW_DEVICE LaneParts parts_of_lane(const int* starts, int first, int packed, int size) {
    const int lane = threadIdx.x % 32, sequence = first + lane;
    LaneParts parts{0, 0};
    if (sequence < packed) {
        parts.count = (starts[sequence + 1] - starts[sequence] + size - 1) / size;
    }
    parts.end = parts.count;
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_sync(~0u, parts.end, max(lane - step, 0));
        if (lane >= step) parts.end += before;
    }
    return parts;
}

/// The lane whose sequence has part `index`, counted from the first lane's on; 31 if none has it.
TW_DEVICE int lane_of_part(const LaneParts& parts, int index) {
    int lane = 0;
    for (int step = 16; step > 0; step /= 2) {
        if (__shfl_sync(~0u, parts.end, lane + step - 1) <= index) lane += step;
    }
    return lane;
}

/// Where a tile is among the tiles of all sequences.
struct PackedPlace {
    int sequence;     ///< `packed`: there is no such tile
    int first_place;  ///< the first tile of its sequence
    int first_block;  ///< blocks of columns in the sequences before
};

/// For tiles of `tile_rows` rows and blocks of `block_columns`. All lanes have the same `place`.
TW_DEVICE PackedPlace find_packed(const int* row_starts, const int* column_starts, int packed,
                                  int place, int tile_rows, int block_columns) {
    PackedPlace at{0, 0, 0};
    for (; at.sequence < packed; at.sequence += 32) {
        const LaneParts tiles = parts_of_lane(row_starts, at.sequence, packed, tile_rows),
                        blocks = parts_of_lane(column_starts, at.sequence, packed, block_columns);
        const int index = place - at.first_place, all = __shfl_sync(~0u, tiles.end, 31);
        if (index < all) {
            const int lane = lane_of_part(tiles, index);
            at.sequence += lane;
            at.first_place += __shfl_sync(~0u, tiles.end - tiles.count, lane);
            at.first_block += __shfl_sync(~0u, blocks.end - blocks.count, lane);
            return at;
        }
        at.first_place += all;
        at.first_block += __shfl_sync(~0u, blocks.end, 31);
    }
    at.sequence = packed;
    return at;
}

/// The rows of a block of `block_rows` rows of packed sequences; none past the last block. Each
/// lane has a block of its own.
TW_DEVICE BlockRows rows_of_block(const int* starts, int packed, int block_rows, int block) {
    BlockRows result{0, 0};
    int first_block = 0;
    for (int first = 0; first < packed; first += 32) {
        const LaneParts parts = parts_of_lane(starts, first, packed, block_rows);
        const int index = block - first_block, all = __shfl_sync(~0u, parts.end, 31);
        const int lane = lane_of_part(parts, index);
        const int before = __shfl_sync(~0u, parts.end - parts.count, lane);
        if (index >= 0 && index < all) {
            const int inside = (index - before) * block_rows, begin = starts[first + lane],
                      rows = starts[first + lane + 1] - begin;
            result = {begin + inside, min(block_rows, rows - inside)};
        }
        first_block += all;
        if (__all_sync(~0u, block < first_block)) break;
    }
    return result;
}

}  // namespace twd::attn
