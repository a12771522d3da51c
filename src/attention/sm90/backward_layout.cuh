// Shared memory, barriers and tile order of the backward kernel, which all its roles agree on.
#pragma once

#include "attention/sm90/backward_parameters.h"
#include "attention/sm90/pipeline.cuh"
#include "backward_config.cuh"
#include "cuda/device/ptx/mbarrier.cuh"

namespace twd::attn {

/// Two: K of the next tile is there before this one's is free.
constexpr int kKeyBuffers = kAhead ? 2 : 1;
constexpr KeyTileMemory kMemory =
    memory_of(KeyTileShape{kQueryDim, kValueDim, kWarpgroups, kOver128, kBlockM, kStages,
                           kListedBlocks, kMaskBits, kKeyBuffers});
constexpr int kStrips = kMemory.strips;  ///< strips of 64 keys in a tile
constexpr int kBlockN = 64 * kStrips;    ///< keys of a tile
constexpr int kConsumerWarps = 4 * kWarpgroups;

// dQ of a block of query rows is multiplied in parts of 64 rows, one for each warpgroup: rows of dQ
// if there are 64 per warpgroup, else panels of 64 columns as rows of dQ^T. Where head_dim > 128,
// dQ has a separate kernel.
constexpr bool kGradTransposed = kBlockM != 64 * kWarpgroups;
constexpr int kGradColumns = kMemory.grad_columns;  ///< columns of a part of 64 rows
constexpr int kGradParts = kWarpgroups;
constexpr u32 kGradBytes = kMemory.grad;  ///< bytes of one part in f32
/// A part lies in the order of its registers. Rows of dQ^T past the last column of dQ belong to the
/// last warps of a part, which come last and are left out: the bytes of a part that are added up.
TW_DEVICE constexpr u32 grad_bytes(u32 part) {
    const int rows = kGradTransposed ? kQueryDim - 64 * static_cast<int>(part) : 64;
    const int warps = rows >= 64 ? 4 : rows > 0 ? (rows + 15) / 16 : 0;
    return kGradBytes / 4 * warps;
}
/// Bytes from a warp's registers to the next warp's, and from four registers to the next four.
constexpr u32 kGradWarpBytes = kGradTransposed ? kGradBytes / 4 : 512;
constexpr u32 kGradQuadBytes = kGradTransposed ? 512 : 2048;
static_assert(kBlockM % 16 == 0 &&
                  (kOver128 || !kGradTransposed || panels(kQueryDim) <= kGradParts),
              "dQ cannot be shared out");

static_assert(!kFused || (kDeterministic && 2 * kBlockM >= kBlockN),
              "a tile finishes at most two blocks at the diagonal");

constexpr u32 kTilePanelBytes = kMemory.tile_panel;
constexpr u32 kBlockPanelBytes = kMemory.block_panel;
constexpr u32 kKeyBytes = kMemory.key;
constexpr u32 kValueBytes = kMemory.value;
constexpr u32 kQueryBytes = kMemory.query;
constexpr u32 kGradOutBytes = kMemory.grad_out;
constexpr u32 kScoreBytes = kMemory.score;
constexpr u32 kStatBytes = kMemory.stat;

constexpr u32 kValueOffset = kMemory.value_offset;
constexpr u32 kQueryOffset = kMemory.query_offset;
constexpr u32 kGradOutOffset = kMemory.grad_out_offset;
constexpr u32 kScoreOffset = kMemory.score_offset;
constexpr u32 kGradOffset = kMemory.grad_offset;
constexpr u32 kStatOffset = kMemory.stat_offset;
constexpr u32 kBarrierOffset = kMemory.barrier_offset;
constexpr u32 kBitsOffset = kMemory.bits_offset;
constexpr u32 kWordsPerThread = (kBlockM + 63) / 64;  ///< words of mask bits
constexpr u32 kBitsBytes = kMemory.bits;
constexpr u32 kSharedBytes = kMemory.total;
static_assert(kSharedBytes == kReservedBytes, "the host reserves another number of bytes");

/// Blocks are described one by one unless they follow from their tile.
constexpr bool kLengths = kLengthBytes != 0;
constexpr bool kDescribed = kListedBlocks || kScoreMod || kDropout || kOver128 || kLengths;
/// Do lists say which keys some query attends to?
constexpr bool kLiveLists = kMaskBits || kSegments;
/// May memory hold keys that no query attends to?
constexpr bool kHidesKeys = kPacked || kLengths || kLiveLists;
/// Where head_dim > 128, do the two warpgroups share the scores evenly?
constexpr bool kEvenOver128 = kOver128 && kStages > 2 && !kScoreMod && !kDropout;
/// Descriptions that fit in shared memory at once. The producer is at most five blocks ahead of the
/// threads that add dQ.
constexpr int kDescriptions = 8;

/// One tile of keys, as the producer announces it to the other roles.
struct KeyTile {
    int index;  ///< index of the tile in its head or sequence; -1: no more tiles
    int batch, kv_head;
    int blocks;       ///< number of visits, over all query heads of the group; may be 0
    int begin, each;  ///< for ranges by diagonals: first block of query rows that sees the tile,
                      ///< and how many do
    int rank;         ///< position in the order of work within its head
    int sequence;     ///< if sequences are packed
    SequenceRows rows;
    int first_q_block;   ///< the sequence's first block
    bool is_descending;  ///< for ranges by diagonals: does it visit its last block first?
    int keys;            ///< the tile's keys end here: a length, or the end of the keys
};

/// One visit of a tile to a block of query rows.
struct BlockVisit {
    int block;   ///< index in the head or, if sequences are packed, in the sequence
    int head;    ///< query head
    int states;  ///< two bits per strip of 64 keys, and the predecessor, as in MaskEntry
    int bits;    ///< tile of mask bits; negative: none
};

/// Addresses in shared memory. A "full" barrier says that the data is there, an "empty" one that
/// every reader is done with it.
struct Shared {
    u32 base;

    TW_DEVICE u32 key(int buffer = 0) const { return base + buffer * kKeyBytes; }
    TW_DEVICE u32 value() const { return base + kValueOffset; }
    TW_DEVICE u32 query(int stage) const { return base + kQueryOffset + stage * kQueryBytes; }
    TW_DEVICE u32 grad_out(int stage) const {
        return base + kGradOutOffset + stage * kGradOutBytes;
    }
    /// dS or, where head_dim > 128, P of a tile: two buffers.
    TW_DEVICE u32 score(int buffer) const { return base + kScoreOffset + buffer * kScoreBytes; }
    /// dQ of a warpgroup on its way to the sums; unused where head_dim > 128.
    TW_DEVICE u32 grad(int warpgroup) const { return base + kGradOffset + warpgroup * kGradBytes; }
    TW_DEVICE u32 lse(int stage) const { return base + kStatOffset + stage * kStatBytes; }
    TW_DEVICE u32 delta(int stage) const { return lse(kStages + stage); }

    TW_DEVICE u32 key_full(int buffer = 0) const {
        return barrier(buffer == 0 ? 0 : kAheadBarriers);
    }
    TW_DEVICE u32 value_full() const { return barrier(1); }
    TW_DEVICE u32 tile_empty(int buffer = 0) const {
        return barrier(buffer == 0 ? 2 : kAheadBarriers + 1);
    }
    TW_DEVICE u32 value_empty() const { return barrier(kAheadBarriers + 2); }
    TW_DEVICE u32 score_full(int buffer) const { return barrier(3 + buffer); }
    TW_DEVICE u32 score_empty(int buffer) const { return barrier(5 + buffer); }
    TW_DEVICE u32 grad_full(int warpgroup) const { return barrier(7 + warpgroup); }
    TW_DEVICE u32 grad_empty(int warpgroup) const { return barrier(10 + warpgroup); }
    TW_DEVICE u32 query_full(int stage) const { return barrier(13 + stage); }
    TW_DEVICE u32 query_empty(int stage) const { return barrier(13 + kStages + stage); }
    TW_DEVICE u32 grad_out_full(int stage) const { return barrier(13 + 2 * kStages + stage); }
    TW_DEVICE u32 grad_out_empty(int stage) const { return barrier(13 + 3 * kStages + stage); }
    /// Sums of dQ came back from memory.
    TW_DEVICE u32 sums_full(int warpgroup) const { return barrier(13 + 4 * kStages + warpgroup); }

    /// Description of the tile: index, batch, kv head, blocks; begin, each, rank, sequence or, if
    /// none are packed, whether it is descending; and the rows of a packed sequence.
    TW_DEVICE u32 tile(int buffer = 0) const { return base + kBarrierOffset + 256 + 64 * buffer; }
    /// Description of a visit: block, head, states and predecessor, the next visit's states.
    TW_DEVICE u32 visit(int index) const { return base + kBarrierOffset + 320 + 16 * index; }
    /// Which keys of the tile some query attends to: a word of 64 bits per strip, if lists say so.
    TW_DEVICE u32 live() const { return base + kBarrierOffset + 448; }
    TW_DEVICE u32 bits(int stage) const { return base + kBitsOffset + stage * kBitsBytes; }

  private:
    static constexpr int kAheadBarriers = 13 + 4 * kStages + kWarpgroups;
    TW_DEVICE u32 barrier(int index) const { return base + kBarrierOffset + 8 * index; }
};
static_assert(!kAhead || !kDescribed, "the second description takes the place of visits");
static_assert(8 * (13 + 4 * kStages + kWarpgroups + 3) <= 256,
              "barriers end before the description of the tile");

/// A place in the order of work, as a kv head and a rank among its tiles.
struct Place {
    int rank;  ///< in the order of work; of heads that do not go upward, 0 is the longest
    int batch_kv_head;
};

/// The tile at a place in the order of work. Heads run in groups whose Q, dO and dQ fit in L2, the
/// longest tiles of a group first; the shortest tiles of all heads come last and fill the tail.
TW_DEVICE Place place_at(int place, const BackwardParameters& p) {
    const int early = p.kv_tiles - p.late_kv_tiles;
    const int early_places = early * p.batch_kv_heads;
    Place result;
    if constexpr (kUpward) {
        const int rest = place - p.upward_heads * p.kv_tiles;
        const int group_heads = rest < 0 ? p.group_heads : p.batch_kv_heads - p.upward_heads;
        const int group = rest < 0 ? place / (p.kv_tiles * group_heads) : 0;
        const int first_head = rest < 0 ? group * group_heads : p.upward_heads;
        const int heads = rest < 0 ? min(group_heads, p.upward_heads - first_head) : group_heads;
        const int in_group = rest < 0 ? place - group * p.kv_tiles * group_heads : rest;
        result.rank = in_group / heads;
        result.batch_kv_head = first_head + in_group % heads;
        return result;
    }
    if (place < early_places) {
        const int group = place / (early * p.group_heads);
        const int first_head = group * p.group_heads;
        const int heads = min(p.group_heads, p.batch_kv_heads - first_head);
        const int rest = place - group * early * p.group_heads;
        result.rank = rest / heads;
        result.batch_kv_head = first_head + rest % heads;
    } else {
        const int rest = place - early_places;
        result.rank = early + rest / p.batch_kv_heads;
        result.batch_kv_head = rest % p.batch_kv_heads;
    }
    return result;
}

/// Do tiles visit their blocks from the last one down? Outside of kernels that go upward,
/// deterministic sums go from low tiles to high ones, and this way no tile waits for long. And the
/// tiles of a group of query heads, which begin at the same time, then read the same blocks, which
/// stay in L2.
TW_DEVICE bool is_descending(const BackwardParameters& p) {
    return kDeterministic || p.heads_per_kv_head > 1;
}

/// The tile at a place, its blocks given by the diagonals. Tiles shrink as their keys advance.
TW_DEVICE KeyTile tile_at(const Place& place, const BackwardParameters& p) {
    KeyTile tile{};
    const bool up = kUpward && place.batch_kv_head < p.upward_heads;
    tile.index = tile.rank = up ? p.kv_tiles - 1 - place.rank : place.rank;
    tile.is_descending = kUpward ? !up : is_descending(p);
    tile.batch = place.batch_kv_head / p.kv_heads;
    tile.kv_head = place.batch_kv_head - tile.batch * p.kv_heads;
    const int first_key = tile.index * kBlockN;
    tile.keys = keys_of<kLengthBytes>(p.kv_lengths, tile.batch, p.kv_len);
    const int last_key = min(first_key + kBlockN, tile.keys) - 1;
    const int begin = kUpperBound ? max(0, first_key - p.upper_diagonal) : 0;
    const int end = kLowerBound ? min(p.q_len, last_key - p.lower_diagonal + 1) : p.q_len;
    tile.begin = begin / kBlockM;
    tile.each = begin < end ? (end + kBlockM - 1) / kBlockM - tile.begin : 0;
    if (kLengths && first_key >= tile.keys) tile.each = 0;
    tile.blocks = tile.each * p.heads_per_kv_head;
    return tile;
}

/// The block of query rows at a place in a tile's order.
TW_DEVICE int block_at(int place, int begin, int blocks, bool descending) {
    return begin + (descending ? blocks - 1 - place : place);
}

/// When a tile adds to a block's dQ (BlockPredecessor): with diagonals, after the previous tile,
/// or upward after the next one, unless it is the first that sees the block.
TW_DEVICE u32 predecessor_of(int tile, int block, bool descending, const BackwardParameters& p) {
    if (kUpward && !descending) {
        const int last_row = block * kBlockM + kBlockM - 1;
        return tile == min(p.kv_tiles - 1, last_row / kBlockN) ? 0 : tile + 2;
    }
    const int first = kLowerBound ? max(0, block * kBlockM + p.lower_diagonal) / kBlockN : 0;
    return tile == first ? 0 : tile;
}

/// Fused: to how many blocks, from the tile's first one on, does no further tile add? These are the
/// blocks that the tile visits last; upward, all blocks of the first keys' tile.
TW_DEVICE int finished_blocks(int tile, int begin, int each, bool descending,
                              const BackwardParameters& p) {
    if (kUpward && !descending) return tile == 0 ? each : 0;
    if (tile == p.kv_tiles - 1) return each;
    return kUpperBound ? (tile + 1) * kBlockN / kBlockM - begin : 0;
}

/// Does any pair of a strip's keys (from `first_key` on) and a block's rows lie outside the
/// diagonals or past the last of `keys` keys?
TW_DEVICE bool is_masked(int first_key, int block, int keys, const BackwardParameters& p) {
    const int row = block * kBlockM;
    return first_key + 64 > keys || (kUpperBound && row + p.upper_diagonal < first_key + 63) ||
           (kLowerBound && row + kBlockM - 1 + p.lower_diagonal > first_key);
}

/// Row of (batch, head) in arrays with one row per query head.
TW_DEVICE int query_head_row(int batch, int head, const BackwardParameters& p) {
    return batch * p.heads + head;
}

}  // namespace twd::attn
