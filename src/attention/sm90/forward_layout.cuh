// Shared memory, barriers and tile order of the kernels with tiles of queries (forward, and dQ
// where head_dim > 128), which producer and consumers agree on.
#pragma once

#include "attention/sm90/forward_parameters.h"
#include "attention/sm90/pipeline.cuh"
#include "cuda/device/ptx/mbarrier.cuh"
#include "cuda/device/ptx/sync.cuh"
#include "forward_config.cuh"

namespace twd::attn {

constexpr int kBlockM = 64 * kWarpgroups;  ///< query rows of a tile

constexpr QueryTileMemory kMemory =
    memory_of(QueryTileShape{kQueryDim, kValueDim, kWarpgroups, kBlockN, kStages, kValueStages,
                             kQueryBuffers, kQueryGradient, kListedBlocks, kMaskBits});
constexpr u32 kQueryPanelBytes = kMemory.query_panel;
constexpr u32 kBlockPanelBytes = kMemory.block_panel;
constexpr u32 kQueryBytes = kMemory.query;
constexpr u32 kKeyBytes = kMemory.key;
constexpr u32 kValueBytes = kMemory.value;
constexpr u32 kGradOutBytes = kMemory.grad_out;
constexpr u32 kKeyOffset = kMemory.key_offset;
constexpr u32 kValueOffset = kMemory.value_offset;
constexpr u32 kBarrierOffset = kMemory.barrier_offset;
constexpr u32 kWordsPerThread = kBlockN / 64;  ///< words of mask bits
constexpr u32 kBitsBytes = kMemory.bits;
constexpr u32 kBitsOffset = kMemory.bits_offset;
constexpr u32 kSharedBytes = kMemory.total;
static_assert(kSharedBytes == kReservedBytes, "the host reserves another number of bytes");

static_assert(kBlockN % 16 == 0 && kBlockN <= 256,
              "P V takes keys in steps of 16, a copy 256 rows");
// A warpgroup skips blocks that only others see, and holds a V buffer of the last tile meanwhile.
static_assert(!kMaskBits || kBlockN == 64 || kBlockN == 128, "a thread reads its bits at once");
static_assert(!kUpperBound || kListedBlocks || kQueryGradient ||
                  (kBlockM - 64 + kBlockN - 1) / kBlockN <= kStages,
              "skipping would stall");
static_assert(kQueryBytes % 1024 == 0 && kBlockPanelBytes % 1024 == 0,
              "the swizzle repeats every 1024");

/// One tile of query rows, as the producer announces it to the consumers.
struct Tile {
    int q_tile;  ///< -1: no more tiles
    int batch;
    int head;    ///< query head
    int blocks;  ///< key blocks to visit, from right to left or as listed; at least one
    /// Rows of the tile's sequence if sequences are packed; `batch` then counts sequences. With
    /// lengths, its keys end there.
    SequenceRows rows;
    int begin = 0;   ///< first block, if blocks are a range
    int split = -1;  ///< which split of the keys this is; -1: all keys
};

/// Addresses in shared memory. A "full" barrier says that data has arrived, an "empty" one that
/// every consumer warp is done with it.
struct Shared {
    u32 base;

    TW_DEVICE u32 query(int buffer) const { return base + buffer * (kQueryBytes + kGradOutBytes); }
    TW_DEVICE u32 grad_out(int buffer) const { return query(buffer) + kQueryBytes; }
    TW_DEVICE u32 key(int stage) const { return base + kKeyOffset + stage * kKeyBytes; }
    TW_DEVICE u32 value(int stage) const { return base + kValueOffset + stage * kValueBytes; }

    TW_DEVICE u32 query_full(int buffer) const { return barrier(buffer); }
    TW_DEVICE u32 query_empty(int buffer) const { return barrier(2 + buffer); }
    TW_DEVICE u32 key_full(int stage) const { return barrier(4 + stage); }
    TW_DEVICE u32 key_empty(int stage) const { return barrier(4 + kStages + stage); }
    TW_DEVICE u32 value_full(int stage) const { return barrier(4 + 2 * kStages + stage); }
    TW_DEVICE u32 value_empty(int stage) const { return barrier(4 + 3 * kStages + stage); }

    /// Description of the tile in a query buffer: four words, then four more about its sequence or
    /// its split of the keys, the last of which is the end of the keys.
    TW_DEVICE u32 tile(int buffer) const { return base + kBarrierOffset + 192 + 32 * buffer; }
    /// Description of a listed key block: block; blocks left in its entry and, from bit 24 on,
    /// states; two words of keys that some query attends to.
    TW_DEVICE u32 block(int stage) const { return base + kBarrierOffset + 256 + 16 * stage; }
    TW_DEVICE u32 bits(int stage) const { return base + kBitsOffset + stage * kBitsBytes; }

  private:
    TW_DEVICE u32 barrier(int index) const { return base + kBarrierOffset + 8 * index; }
};
static_assert(8 * (4 + 4 * kStages) <= 192, "barriers end before the tile descriptions");

TW_DEVICE void initialize_barriers(const Shared& shared) {
    constexpr u32 kConsumerWarps = 4 * kWarpgroups;
    TW_LOOP
    for (int i = 0; i < kQueryBuffers; ++i) {
        ptx::mbarrier_init(shared.query_full(i), 1);
        ptx::mbarrier_init(shared.query_empty(i), kConsumerWarps);
    }
    TW_LOOP
    for (int i = 0; i < kStages; ++i) {
        ptx::mbarrier_init(shared.key_full(i), 1);
        ptx::mbarrier_init(shared.key_empty(i), kConsumerWarps);
    }
    TW_LOOP
    for (int i = 0; i < kValueStages; ++i) {
        ptx::mbarrier_init(shared.value_full(i), 1);
        ptx::mbarrier_init(shared.value_empty(i), kConsumerWarps);
    }
    ptx::fence_mbarrier_init();
}

/// The query of a tile's row: rows of the query heads of a group alternate.
TW_DEVICE int query_of(int row) {
    return kGroup == 1 ? row : row / kGroup;
}

constexpr bool kLengths = kLengthBytes != 0;
/// Do lists say which keys some query attends to?
constexpr bool kLiveLists = kMaskBits || kSegments;
/// May a tile visit blocks with keys in memory that none of its queries attends to?
constexpr bool kHidesKeys = kUpperBound || kPacked || kLengths || kLiveLists;

/// One past the last block that rows up to `row` may see of `keys` keys; at least `begin` + 1.
TW_DEVICE int end_block(int row, int begin, int keys, const ForwardParameters& p) {
    if constexpr (kUpperBound) keys = min(keys, query_of(row) + p.upper_diagonal + 1);
    return max(begin + 1, (keys + kBlockN - 1) / kBlockN);
}

/// First block that rows from `row` on may see.
TW_DEVICE int begin_block(int row, const ForwardParameters& p) {
    return kLowerBound ? max(0, query_of(row) + p.lower_diagonal) / kBlockN : 0;
}

/// A place in the order of work, as a head and a rank among its tiles.
struct Place {
    int rank;  ///< 0: longest
    int batch, head;
    int begin = 0, end = 0;  ///< slots of the tile, for stream-K
};

// For stream-K every tile has p.slots slots of one or more of its blocks, and each CTA processes an
// equal range of all slots, tile by tile. Places are then slots.
/// First slot of a CTA's range.
TW_DEVICE int range_begin(int cta, const ForwardParameters& p) {
    return static_cast<i64>(cta) * p.all_slots / p.stream_k;
}
/// The CTA whose range contains a slot.
TW_DEVICE int cta_of_slot(int slot, const ForwardParameters& p) {
    return (static_cast<i64>(slot + 1) * p.stream_k - 1) / p.all_slots;
}

/// Heads run in groups whose K and V fit in L2, the longest tiles of a group first; the shortest
/// tiles of all heads come last and fill the tail.
TW_DEVICE_ONCE Place place_at(int place, const ForwardParameters& p) {
    const int early = p.q_tiles - p.late_q_tiles;
    const int early_places = early * p.batch_heads;
    Place result;
    if constexpr (kStreamK) {
        const int tile = place / p.slots, first = tile * p.slots;
        result.begin = place - first;
        result.end = min(p.slots, range_begin(blockIdx.x + 1, p) - first);
        place = tile;
    }
    int batch_head;
    if (place < early_places) {
        const int group = place / (early * p.group_heads);
        const int first_head = group * p.group_heads;
        const int heads = min(p.group_heads, p.batch_heads - first_head);
        const int rest = place - group * early * p.group_heads;
        result.rank = rest / heads;
        batch_head = first_head + rest % heads;
    } else {
        const int rest = place - early_places;
        result.rank = early + rest / p.batch_heads;
        batch_head = rest % p.batch_heads;
    }
    result.batch = batch_head / p.heads;
    result.head = batch_head - result.batch * p.heads;
    return result;
}

/// The tile at a place. Tiles grow with their rows.
TW_DEVICE_ONCE Tile tile_at(const Place& place, const ForwardParameters& p) {
    Tile tile{p.q_tiles - 1 - place.rank, place.batch, place.head, 0, {}};
    const int first_row = tile.q_tile * kBlockM;
    const int keys = keys_of<kLengthBytes>(p.kv_lengths, place.batch, p.kv_len);
    if constexpr (kLengths) tile.rows.kv_len = keys;
    tile.begin = begin_block(first_row, p);
    tile.blocks = end_block(first_row + kBlockM - 1, tile.begin, keys, p) - tile.begin;
    if constexpr (kStreamK) {
        const i64 blocks = tile.blocks;
        int first = blocks * place.begin / p.slots;
        tile.blocks = static_cast<int>(blocks * place.end / p.slots) - first;
        if (kLengths && tile.blocks == 0) {  // fewer blocks than slots: visit one past the last key
            first = static_cast<int>(blocks);
            tile.blocks = 1;
        }
        tile.begin += first;
        const int tiles_before = (place.batch * p.heads + place.head) * p.q_tiles + place.rank;
        const bool whole = place.end - place.begin == p.slots;
        tile.split =
            whole ? -1 : static_cast<int>(blockIdx.x) - cta_of_slot(tiles_before * p.slots, p);
    }
    return tile;
}

}  // namespace twd::attn
