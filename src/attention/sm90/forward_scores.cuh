// The scores of a warpgroup's 64 query rows with one block of keys: product, scale, mods and masks,
// for all kernels with tiles of queries.
#pragma once

#include "attention/sm90/dropout.cuh"
#include "attention/sm90/forward_layout.cuh"
#include "attention/sm90/online_softmax.cuh"
#include "attention/sm90/store_rows.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/mma.cuh"
#include "cuda/device/ptx/sync.cuh"
#include "score_mod.cuh"
#include "wgmma_shapes.cuh"

namespace twd::attn {

constexpr int kScores = kBlockN / 2;    ///< registers of a thread for the scores of a block
constexpr int kOperands = kBlockN / 4;  ///< the same, packed as an operand

struct RowScores {
    const ForwardParameters& p;
    const Shared shared;
    const u32 warpgroup, thread;  ///< thread: index in the warpgroup
    ScoreMod mod;

    const u32 lane = thread % 32;
    const int row_in_tile = warpgroup * 64 + thread / 32 * 16 + lane / 4;
    const int column = lane % 4 * 2;
    // The softmax scale is applied in the exponent, unless it is not positive or a score mod sees
    // scaled scores.
    const float scale = kScaleScores || kScoreMod ? kLog2E : p.scale_log2;

    Ring<kQueryBuffers> query_ring;
    Ring<kStages> key_ring;
    Ring<kValueStages> value_ring;

    Tile tile;
    int row;          ///< first of this thread's two rows; the other is 8 rows further
    int block;        ///< the key block whose scores are in `scores`
    int segment[2];   ///< segment ids of the two rows
    u64 dropout_key;  ///< from seed, batch and head
    TW_ALIGNED float scores[kScores];

    // ---- waiting and releasing. One arrival per warp, since each waits for its own part of the
    // wgmma.
    TW_DEVICE void release(u32 barrier) const {
        if (lane == 0) ptx::mbarrier_arrive(barrier);
    }
    TW_DEVICE void release_query() {
        release(shared.query_empty(query_ring.index));
        query_ring.advance();
    }
    TW_DEVICE_ONCE void release_key() {
        release(shared.key_empty(key_ring.index));
        key_ring.advance();
    }
    TW_DEVICE_ONCE void release_value() {
        release(shared.value_empty(value_ring.index));
        value_ring.advance();
    }

    /// The next tile; waits until its query rows have arrived.
    TW_DEVICE_ONCE Tile fetch() const {
        ptx::mbarrier_wait(shared.query_full(query_ring.index), query_ring.parity);
        const uint4 words = ptx::load_shared_128(shared.tile(query_ring.index));
        Tile result{static_cast<int>(words.x),
                    static_cast<int>(words.y),
                    static_cast<int>(words.z),
                    static_cast<int>(words.w),
                    {}};
        if constexpr (kPacked) {
            const uint4 rows = ptx::load_shared_128(shared.tile(query_ring.index) + 16);
            result.rows = {static_cast<int>(rows.x), static_cast<int>(rows.y),
                           static_cast<int>(rows.z), static_cast<int>(rows.w)};
        }
        if constexpr (kStreamK) {
            const uint4 range = ptx::load_shared_128(shared.tile(query_ring.index) + 16);
            result.begin = range.x;
            result.split = range.y;
            if constexpr (kLengths) result.rows.kv_len = range.w;
        } else if constexpr (kLengths && !kPacked) {
            result.rows.kv_len = ptx::load_shared_32(shared.tile(query_ring.index) + 28);
        }
        return result;
    }
    TW_DEVICE int kv_len() const { return kPacked || kLengths ? tile.rows.kv_len : p.kv_len; }

    // ---- keys that no query of the tile attends to
    /// Keys of the current block that some query of the tile attends to, once its K has arrived:
    /// bits if lists have them, else rows [begin, end) of the block.
    struct LiveKeys {
        u64 bits;
        int begin, end;

        TW_DEVICE bool has(int key) const {
            if constexpr (kLiveLists) return key < end && (bits >> key & 1) != 0;
            return key >= begin && key < end;
        }
        TW_DEVICE bool all() const {
            return end >= kBlockN && (kLiveLists ? bits == ~0ull : begin <= 0);
        }
    };
    TW_DEVICE_ONCE LiveKeys live_keys() const {
        LiveKeys live{~0ull, 0, kBlockN};
        // NOTE: computed here and not before a branch, where unmasked blocks would pay for it.
        const int first = static_cast<int>(ptx::uniform_here(block)) * kBlockN;
        if constexpr (kPacked || kLengths) live.end = kv_len() - first;
        if constexpr (kLiveLists) {
            live.bits = ptx::load_shared_64(shared.block(key_ring.index) + 8);
        } else if constexpr (kUpperBound) {
            const int q_len = kPacked ? tile.rows.q_len : p.q_len;
            const int last = min(query_of(tile.q_tile * kBlockM + kBlockM - 1), q_len - 1);
            live.end = min(live.end, last + p.upper_diagonal + 1 - first);
            if constexpr (kLowerBound) {
                live.begin = query_of(tile.q_tile * kBlockM) + p.lower_diagonal - first;
            }
        }
        return live;
    }

    /// Clears the other rows of a block of K or V: in a product NaN times 0 is NaN. Every warpgroup
    /// writes all of them, so that none waits for another.
    template <int kDim>
    TW_DEVICE void clear_hidden(u32 buffer, const LiveKeys& live) const {
        clear_rows<128>(buffer, panels(kDim), kBlockPanelBytes, kBlockN, thread,
                        [&](int key) { return !live.has(key); });
        ptx::named_barrier_sync(1 + warpgroup, 128);
    }

    // ---- scores
    /// d = A B^T over kDim columns, where A is this warpgroup's rows of a tile's buffer and B a
    /// block of keys. Left in flight.
    template <int kDim>
    TW_DEVICE void issue_rows(float (&d)[kScores], u32 buffer, u32 keys) const {
        const u32 rows = buffer + warpgroup * 64 * 128;
        const u64 a = ptx::wgmma_descriptor_swizzle128(rows, 16, 1024);
        const u64 b = ptx::wgmma_descriptor_swizzle128(keys, 16, 1024);
        ptx::wgmma_tie(d);
        ptx::wgmma_fence();
        ptx::wgmma<0, 0, 0, ptx::AlongRows<kQueryPanelBytes>, ptx::AlongRows<kBlockPanelBytes>>(
            Element{}, ptx::Steps<(kDim + 15) / 16>{}, d, a, b);
        ptx::wgmma_commit();
    }

    /// A buffer that products read. NOTE: Q and dO together need more descriptors than there are
    /// uniform registers; kept for all blocks, they would be spilled.
    TW_DEVICE static u32 buffer_here(u32 address) {
        return kQueryGradient ? ptx::uniform_here(address) : address;
    }

    /// scores = Q K^T of the next key block; left in flight. `comes` is false if there is no such
    /// block and the product of whatever is there will be ignored.
    TW_DEVICE_ONCE void issue_scores(bool comes = true) {
        // The phase before the current one has ended, so this does not wait.
        const u32 parity = comes ? key_ring.parity : key_ring.parity ^ 1;
        ptx::mbarrier_wait(shared.key_full(key_ring.index), parity);
        issue_rows<kQueryDim>(scores, buffer_here(shared.query(query_ring.index)),
                              buffer_here(shared.key(key_ring.index)));
    }

    /// Sets what depends on the rows of a tile; `tile` and `row` are already set.
    TW_DEVICE void enter_rows() {
        if constexpr (kScoreMod) {
            mod.enter_tile(tile.batch, tile.head);
            mod.enter_rows(row);
        }
        if constexpr (kSegments) {
            const int last = max(0, (kPacked ? tile.rows.q_len : p.q_len) - 1);
            segment[0] = __ldg(query_segments() + min(row, last));
            segment[1] = __ldg(query_segments() + min(row + 8, last));
        }
        if constexpr (kDropout) {
            dropout_key = dropout_key_of(p.seed, tile.batch, tile.head);
        }
    }

    /// Scales scores if the exponent cannot, and masks keys past the end and outside the diagonals.
    TW_DEVICE_ONCE void prepare_scores(bool masked) {
        if constexpr (kScoreMod) {
            TW_UNROLL
            for (int j = 0; j < kScores / 4; ++j) {
                const ScoreMod::Columns columns = mod.columns_at(j);
                TW_UNROLL
                for (int i = 4 * j; i < 4 * j + 4; ++i) {
                    scores[i] = mod.modified(scores[i], j, i % 2, i / 2 % 2, columns);
                }
            }
        } else if constexpr (kScaleScores) {
            TW_UNROLL
            for (int i = 0; i < kScores; ++i) scores[i] *= p.scale;
        }
        if (!masked) return;
        if constexpr (kMaskBits) {
            apply_bits();
            if constexpr (kLengths) {
                const int last = kv_len() - 1 - block * kBlockN - column;
                TW_UNROLL
                for (int i = 0; i < kScores; ++i) {
                    if (i / 4 * 8 + i % 2 > last) scores[i] = -kInfinity;
                }
            }
        } else {
            if constexpr (kSegments) apply_segments();
            const int first = block * kBlockN + column;
            int last[2] = {kv_len() - 1 - first, kv_len() - 1 - first};
            int lowest[2] = {0, 0};
            TW_UNROLL
            for (int r = 0; r < 2; ++r) {
                const int query = query_of(row + 8 * r);
                if constexpr (kUpperBound) last[r] = min(last[r], query + p.upper_diagonal - first);
                if constexpr (kLowerBound) lowest[r] = query + p.lower_diagonal - first;
            }
            TW_UNROLL
            for (int i = 0; i < kScores; ++i) {
                const int offset = i / 4 * 8 + i % 2, r = i / 2 % 2;
                const bool dead = offset > last[r] || (kLowerBound && offset < lowest[r]);
                if (dead) scores[i] = -kInfinity;
            }
        }
    }

    /// Start of the ids of a tile's queries, or keys.
    TW_DEVICE const int* query_segments() const {
        return p.segments.query +
               (kPacked ? tile.rows.q_begin : static_cast<i64>(tile.batch) * p.q_len);
    }
    TW_DEVICE const int* key_segments() const {
        return p.segments.key +
               (kPacked ? tile.rows.kv_begin : static_cast<i64>(tile.batch) * p.kv_len);
    }

    /// Masks pairs of different segments.
    TW_DEVICE void apply_segments() {
        const int* const ids = key_segments();
        const int last = max(0, kv_len() - 1);
        // NOTE: computed here and not before the branch, where unmasked blocks would pay for it.
        const int first = static_cast<int>(ptx::uniform_here(block)) * kBlockN + column;
        TW_UNROLL
        for (int i = 0; i < kScores; i += 4) {
            TW_UNROLL
            for (int e = 0; e < 2; ++e) {
                const int id = __ldg(ids + min(first + 2 * i + e, last));
                if (id != segment[0]) scores[i + e] = -kInfinity;
                if (id != segment[1]) scores[i + 2 + e] = -kInfinity;
            }
        }
    }

    /// The pairs of the current block that are dropped.
    TW_DEVICE Dropped<kScores> dropped() const {
        return find_dropped<kScores, false>(dropout_key, p.dropout_threshold, row,
                                            block * kBlockN + column);
    }

    /// The state of a listed block for this warpgroup.
    TW_DEVICE int state_of(u32 word) const { return word >> (24 + 2 * warpgroup) & 3; }

    /// Masks the pairs whose bits in the current block are not set.
    TW_DEVICE void apply_bits() {
        if constexpr (kLengths) {  // lengths cut blocks that have no bits
            if (state_of(ptx::load_shared_32(shared.block(key_ring.index) + 4)) == kBlockFull)
                return;
        }
        const u32 address =
            shared.bits(key_ring.index) + (warpgroup * 128 + thread) * kWordsPerThread * 4;
        u32 words[2];
        if constexpr (kWordsPerThread == 1) {
            words[0] = ptx::load_shared_32(address);
        } else {
            const u64 both = ptx::load_shared_64(address);
            words[0] = static_cast<u32>(both);
            words[1] = static_cast<u32>(both >> 32);
        }
        TW_UNROLL
        for (int i = 0; i < kScores; ++i) {
            if ((words[i / 32] >> i % 32 & 1) == 0) scores[i] = -kInfinity;
        }
    }

    // ---- results
    /// Where a row of a tile is stored: its query head and its index among all rows of results.
    struct RowPlace {
        int head;
        i64 index, offset;  ///< offset in `out`
    };
    TW_DEVICE RowPlace place_of(const Tile& done, int row_of_tile) const {
        const int batch = kPacked ? 0 : done.batch;
        const int query = (kPacked ? done.rows.q_begin : 0) + query_of(row_of_tile);
        const int head = done.head * kGroup + (kGroup == 1 ? 0 : row_of_tile % kGroup);
        return {head, static_cast<i64>(batch * p.heads * kGroup + head) * p.q_len + query,
                batch * p.out_batch_stride + head * p.out_head_stride + query * p.out_row_stride};
    }
};

}  // namespace twd::attn
