// Scores of the backward kernel: from S^T and dP^T of a block, in accumulator registers, to P^T and
// dS^T.
#pragma once

#include "attention/sm90/backward_layout.cuh"
#include "attention/sm90/dropout.cuh"
#include "attention/sm90/gradient_sums.cuh"
#include "attention/sm90/store_rows.cuh"
#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/sync.cuh"
#include "cuda/device/ptx/wgmma.cuh"
#include "score_mod.cuh"

namespace twd::attn {

constexpr int kScores = kBlockM / 2;        ///< registers of a thread for the scores of a block
constexpr int kPackedScores = kBlockM / 4;  ///< the same, packed as an operand

/// Mods and dropout need a score and its gradient at the same time.
constexpr bool kScoresTogether = kScoreMod || kDropout;

// Templates, because a mod without gradients of captures lacks these functions.
template <typename Mod>
TW_DEVICE void clear_sums(Mod& mod) {
    if constexpr (Mod::kGathers > 0) mod.clear_sums();
}
template <typename Mod>
TW_DEVICE void finish_columns(Mod& mod, int j) {
    if constexpr (Mod::kGathers > 0) mod.finish_columns(j);
}
template <typename Mod>
TW_DEVICE void store_sums(Mod& mod, const SumPlace& at) {
    if constexpr (Mod::kGathers > 0) mod.store_sums(at);
}

/// What a warpgroup knows of the tile and of the block whose scores it holds, keys x queries:
/// register 4 j + 2 r + e of a thread belongs to its key r (of two, 8 apart) and its query 8 j + e.
struct Scores {
    const BackwardParameters& p;
    const Shared shared;
    const u32 strip, warp;  ///< strip of 64 keys in the tile; warp of the warpgroup
    ScoreMod mod;

    int first_key;   ///< first key of the strip, in its sequence
    int block;       ///< block of query rows
    int heads_left;  ///< where blocks follow from diagonals: query heads still to visit the block,
                     ///< this one included
    int head, states, next_states;  ///< where blocks are described: of the visit
    Ring<kDescriptions> visits;
    Ring<kKeyBuffers> tile_ring;  ///< where K and the description of the tile are

    // NOTE: values derived from the lane are computed where they are used, from a lane index that
    // is read again: kept, they would take registers that the accumulators need.
    /// First of this thread's two keys; the other is 8 rows further.
    TW_DEVICE int key() const { return first_key + warp * 16 + ptx::lane_index() / 4; }
    /// First of this thread's queries.
    TW_DEVICE int query() const { return block * kBlockM + ptx::lane_index() % 4 * 2; }

    // The words of the tile's description stay in shared memory until the tile is released.
    TW_DEVICE int tile_word(int index) const {
        return ptx::load_shared_32(shared.tile(tile_ring.index) + 4 * index);
    }
    TW_DEVICE bool descends() const { return kUpward ? tile_word(7) != 0 : is_descending(p); }
    TW_DEVICE int kv_len() const { return kPacked ? tile_word(11) : p.kv_len; }
    /// End of the keys that may be attended to.
    TW_DEVICE int kv_end() const { return kLengths ? tile_word(13) : kv_len(); }
    TW_DEVICE int q_len() const { return kPacked ? tile_word(9) : p.q_len; }
    /// The batch as mods and dropout see it.
    TW_DEVICE int batch() const { return kPacked ? tile_word(7) : tile_word(1); }

    /// Moves on to a tile and, where blocks follow from diagonals, to its first block.
    TW_DEVICE void enter_tile(int index) {
        first_key = index * kBlockN + strip * 64;
        clear_sums(mod);
        if constexpr (!kDescribed) {
            block = block_at(0, tile_word(4), tile_word(5), descends());
            heads_left = p.heads_per_kv_head;
        }
    }

    /// Clears rows of K, of V or of both for those of this strip's keys that no query attends to,
    /// once they have arrived: in a product NaN times 0 is NaN. No product may be in flight.
    /// `own_barrier` belongs to this warpgroup.
    TW_DEVICE_ONCE void clear_hidden_keys(bool in_keys, bool in_values, u32 parity,
                                          u32 own_barrier) const {
        if constexpr (!kHidesKeys) return;
        int end = 64;
        u64 live = ~0ull;
        if constexpr (kPacked || kLengths) end = kv_end() - first_key;
        if constexpr (kPacked && kUpperBound)
            end = min(end, q_len() + p.upper_diagonal - first_key);
        if constexpr (kLiveLists) live = ptx::load_shared_64(shared.live() + strip * 8);
        if (end < 64) live &= (1ull << max(end, 0)) - 1;
        if (live == ~0ull) return;
        const auto hidden = [&](int row) { return (live >> row & 1) == 0; };
        const u32 thread = warp * 32 + ptx::lane_index(), rows = strip * 64 * 128;
        if (in_keys) {
            clear_rows<128>(shared.key() + rows, panels(kQueryDim), kTilePanelBytes, 64, thread,
                            hidden);
        }
        if (in_values) {
            ptx::mbarrier_wait(shared.value_full(), parity);
            clear_rows<128>(shared.value() + rows, panels(kValueDim), kTilePanelBytes, 64, thread,
                            hidden);
        }
        ptx::named_barrier_sync(own_barrier, 128);
    }

    /// The block of the next visit, which was published with its Q.
    TW_DEVICE int next_block() const { return ptx::load_shared_32(shared.visit(visits.index)); }

    /// Clears the rows of a block of Q or dO past the last query of a packed sequence, where the
    /// next sequence begins, once they have arrived. No product may be in flight. `barrier` belongs
    /// to this warpgroup.
    TW_DEVICE void clear_past_end(int of_block, u32 buffer, int panels, u32 full, u32 parity,
                                  u32 barrier) const {
        const int rows = q_len() - of_block * kBlockM;
        if (rows >= kBlockM) return;
        ptx::mbarrier_wait(full, parity);
        clear_rows<128>(buffer, panels, kBlockPanelBytes, kBlockM, warp * 32 + ptx::lane_index(),
                        [&](int row) { return row >= rows; });
        ptx::named_barrier_sync(barrier, 128);
    }

    /// Moves on to the visit whose Q has arrived. It must not branch, since products are in flight.
    TW_DEVICE void enter_visit() {
        if constexpr (kDescribed) {
            const uint4 words = ptx::load_shared_128(shared.visit(visits.index));
            visits.advance();
            block = words.x;
            head = words.y;
            states = words.z;
            next_states = words.w;
        }
        if constexpr (kScoreMod) {
            mod.enter_tile(batch(), head);
            mod.enter_rows(key());
            mod.enter_block(query());
        }
    }

    /// The block of the next visit: all query heads of the group visit a block before the next one.
    TW_DEVICE int following() const {
        if (heads_left > 1) return block;
        return descends() ? block - 1 : block + 1;
    }
    TW_DEVICE void follow() {
        block = following();
        heads_left = heads_left > 1 ? heads_left - 1 : p.heads_per_kv_head;
    }

    /// Is some pair of this strip and the next block masked?
    TW_DEVICE bool next_is_masked() const {
        if constexpr (kDescribed) return (next_states >> 2 * strip & 3) != kBlockFull;
        return is_masked(first_key, following(), kv_end(), p);
    }

    // ---- results
    /// Where the tile's keys lie in dK and dV; outlives the tile's description.
    struct KeyRows {
        int batch, head, begin, len;  ///< len: length of the sequence
        int piece;                    ///< of KeyTile
    };
    TW_DEVICE KeyRows rows_of_tile() const {
        return {tile_word(1), tile_word(2), kPacked ? tile_word(10) : 0, kv_len(),
                kCutsTiles ? tile_word(8) : 0};
    }

    /// Stores into the tensor, or into `splits` if other tiles process other query heads of the
    /// group or this is a piece of a tile.
    template <int kColumns, int kCount>
    TW_DEVICE_ONCE void store(const float (&sums)[kCount], const Rows& to, float* splits,
                              float factor, const KeyRows& rows) const {
        const float factors[2] = {factor, factor};
        const int row = key();
        const bool is_piece = kCutsTiles && rows.piece > 0;
        if (p.splits > 1 || is_piece) {
            const i64 head = static_cast<i64>(rows.batch) * p.kv_heads + rows.head;
            const i64 first =
                is_piece ? static_cast<i64>(rows.piece - 1) * kBlockN - (first_key - strip * 64)
                         : head * p.kv_len;
            store_floats<kColumns>(sums, factors, splits + (first + row) * kColumns, 8 * kColumns,
                                   rows.len - row);
            return;
        }
        u16* const target = static_cast<u16*>(to.data) + rows.batch * to.batch_stride +
                            rows.head * to.head_stride + (rows.begin + row) * to.row_stride;
        store_rows<kColumns>(Element{}, sums, factors, target, 8 * to.row_stride, rows.len - row);
    }

    /// Stores packed rows of 16 bits into the tensor. `key` is this thread's first one.
    template <int kColumns, int kWords>
    TW_DEVICE_ONCE void store_packed(const u32 (&words)[kWords], const Rows& to, int row,
                                     const KeyRows& rows) const {
        u16* const target = static_cast<u16*>(to.data) + rows.batch * to.batch_stride +
                            rows.head * to.head_stride + (rows.begin + row) * to.row_stride;
        store_words<kColumns>([&](int i) { return i < kWords ? words[i] : 0; }, target,
                              8 * to.row_stride, rows.len - row);
    }

    // ---- which pairs of the block attend
    struct Mask {
        u32 words[kMaskBits ? kWordsPerThread : 1];
        int first[2], last[2];  ///< by key: the queries that see it, from this thread's first on
        int key_ids[2];
        const int* query_ids;  ///< ids from the block's first query on; there are `queries` of them
        int queries;
    };

    TW_DEVICE Mask mask_of_block(int stage) const {
        Mask mask{};
        const int first_query = query();
        if constexpr (kMaskBits) {
            const int state = states >> 2 * strip & 3;
            const bool whole = state == kBlockFull || (kLengths && state == kBlockCut);
            const u32 address = shared.bits(stage) +
                                (strip * 128 + warp * 32 + ptx::lane_index()) * kWordsPerThread * 4;
            TW_UNROLL
            for (int i = 0; i < kWordsPerThread; ++i) {
                mask.words[i] = whole ? ~0u : ptx::load_shared_32(address + 4 * i);
            }
            if constexpr (kLengths) {
                constexpr u32 kFirstKey = 0x33333333;  // registers 4 j and 4 j + 1
                const int keys = kv_end() - key();
                TW_UNROLL
                for (int i = 0; i < kWordsPerThread; ++i) {
                    if (keys <= 0) mask.words[i] &= ~kFirstKey;
                    if (keys <= 8) mask.words[i] &= kFirstKey;
                }
            }
        } else {
            const int keys = kv_end();
            TW_UNROLL
            for (int r = 0; r < 2; ++r) {
                const int k = key() + 8 * r;
                mask.first[r] = kUpperBound ? k - p.upper_diagonal - first_query : 0;
                mask.last[r] = kLowerBound ? k - p.lower_diagonal - first_query : kBlockM;
                if (k >= keys) mask.last[r] = -1;
            }
        }
        if constexpr (kSegments) {
            const int* const key_ids =
                p.segments.key +
                (kPacked ? tile_word(10) : static_cast<i64>(tile_word(1)) * p.kv_len);
            const int last_key = kv_len() - 1;
            mask.key_ids[0] = __ldg(key_ids + min(key(), last_key));
            mask.key_ids[1] = __ldg(key_ids + min(key() + 8, last_key));
            mask.query_ids = p.segments.query +
                             (kPacked ? tile_word(8) : static_cast<i64>(tile_word(1)) * p.q_len);
            mask.queries = q_len();
        }
        return mask;
    }

    /// Does the pair in register 4 j + e attend? `ids` are those of queries 8 j and 8 j + 1.
    TW_DEVICE static bool attends(const Mask& mask, int j, int e, int2 ids) {
        const int i = 4 * j + e, offset = 8 * j + e % 2, r = e / 2;
        if constexpr (kMaskBits) return (mask.words[i / 32] >> i % 32 & 1) != 0;
        bool alive = offset <= mask.last[r];
        if constexpr (kUpperBound) alive &= offset >= mask.first[r];
        if constexpr (kSegments) alive &= (e % 2 == 0 ? ids.x : ids.y) == mask.key_ids[r];
        return alive;
    }

    TW_DEVICE int2 query_ids(const Mask& mask, int j) const {
        if constexpr (!kSegments) return {0, 0};
        const int first = query() + 8 * j, last = mask.queries - 1;
        return {__ldg(mask.query_ids + min(first, last)),
                __ldg(mask.query_ids + min(first + 1, last))};
    }

    // ---- P and dS
    /// scores = P^T = exp2(scale * S^T - lse); 0 where masked.
    template <bool kMasked>
    TW_DEVICE_ONCE void compute_p(float (&scores)[kScores], int stage) const {
        const u32 lse = shared.lse(stage) + ptx::lane_index() % 4 * 8;
        Mask mask;
        if constexpr (kMasked) mask = mask_of_block(stage);
        TW_UNROLL
        for (int j = 0; j < kScores / 4; ++j) {  // 8 query rows, of which two are this thread's
            const float2 l = ptx::load_shared_f32x2(lse + j * 32);
            int2 ids{};
            if constexpr (kMasked) ids = query_ids(mask, j);
            TW_UNROLL
            for (int e = 0; e < 4; ++e) {
                float& x = scores[4 * j + e];
                x = ptx::exp2_approx(x * p.scale_log2 - (e % 2 == 0 ? l.x : l.y));
                if (kMasked && !attends(mask, j, e, ids)) x = 0;
            }
        }
    }

    /// grad_scores = dS^T = P^T (dP^T - delta), without the softmax scale.
    TW_DEVICE_ONCE void compute_grad_scores(const float (&scores)[kScores],
                                            float (&grad_scores)[kScores], int stage) const {
        const u32 delta = shared.delta(stage) + ptx::lane_index() % 4 * 8;
        TW_UNROLL
        for (int j = 0; j < kScores / 4; ++j) {
            const float2 d = ptx::load_shared_f32x2(delta + j * 32);
            TW_UNROLL
            for (int e = 0; e < 4; ++e) {
                float& x = grad_scores[4 * j + e];
                x = scores[4 * j + e] * (x - (e % 2 == 0 ? d.x : d.y));
            }
        }
    }

    /// Both at once, with mods and dropout. P^T for dV leaves out the dropped pairs; the others are
    /// scaled when dV is stored. Only P^T if there is no dP^T.
    template <bool kMasked, int kGrads>
    TW_DEVICE_ONCE void compute_together(float (&scores)[kScores], float (&grad_scores)[kGrads],
                                         int stage) {
        constexpr bool kWithGrads = kGrads == kScores;
        const u32 lane_offset = ptx::lane_index() % 4 * 8;
        const u32 lse = shared.lse(stage) + lane_offset, delta = shared.delta(stage) + lane_offset;
        Dropped<kScores> dropped_pairs{};
        if constexpr (kDropout) {
            dropped_pairs = find_dropped<kScores, true>(dropout_key_of(p.seed, batch(), head),
                                                        p.dropout_threshold, key(), query());
        }
        Mask mask;
        if constexpr (kMasked) mask = mask_of_block(stage);
        TW_UNROLL
        for (int j = 0; j < kScores / 4; ++j) {
            const float2 l = ptx::load_shared_f32x2(lse + j * 32);
            const float2 d = ptx::load_shared_f32x2(delta + j * 32);
            const ScoreMod::Columns columns = mod.columns_at(j);
            int2 ids{};
            if constexpr (kMasked) ids = query_ids(mask, j);
            TW_UNROLL
            for (int e = 0; e < 4; ++e) {
                const float score = scores[4 * j + e], offset = e % 2 == 0 ? l.x : l.y;
                float exponent = score * p.scale_log2 - offset;
                if constexpr (kScoreMod) {
                    exponent = mod.exponent(score, j, e % 2, e / 2, columns, -offset);
                }
                float probability = ptx::exp2_approx(exponent);
                float grad = kWithGrads ? grad_scores[kWithGrads ? 4 * j + e : 0] : 0.0f;
                if (kMasked && !attends(mask, j, e, ids)) probability = 0;
                bool dropped = false;
                if constexpr (kDropout) {
                    dropped = dropped_pairs[4 * j + e];
                    grad = dropped ? 0.0f : grad * p.keep_scale;
                }
                if constexpr (kWithGrads) {
                    grad = probability * (grad - (e % 2 == 0 ? d.x : d.y));
                    if constexpr (kScoreMod) {
                        grad = mod.gradient(score, j, e % 2, e / 2, columns, grad);
                    }
                    grad_scores[4 * j + e] = grad;
                }
                scores[4 * j + e] = dropped ? 0.0f : probability;
            }
            if constexpr (kWithGrads) finish_columns(mod, j);
        }
        if constexpr (kWithGrads && ScoreMod::kGathers > 0) {
            if ((states & kLastOfHead) != 0) store_sums(mod, sum_place());
        }
    }

    /// Where this warp's sums for captures go.
    TW_DEVICE SumPlace sum_place() const {
        // Packed sequences count their own tiles; ranks count the tiles of all sequences.
        const i64 tile = static_cast<i64>(query_head_row(tile_word(1), head, p)) * p.kv_tiles +
                         tile_word(kPacked ? 6 : 0);
        const int row = warp * 16 + ptx::lane_index() / 4;
        return SumPlace{tile * (kStrips * 4) + strip * 4 + warp, tile * kBlockN + strip * 64 + row,
                        kv_len() - first_key - row};
    }
};

}  // namespace twd::attn
