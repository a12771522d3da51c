// Shared memory and barriers of the backward kernel, which all its roles agree on.
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

#include "attention/sm90/backward_order.cuh"  // needs the constants above
