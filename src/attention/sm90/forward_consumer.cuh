// A consumer warpgroup of the forward kernel: 64 query rows, both matrix products, and the softmax
// between them.
#pragma once

#include "attention/sm90/forward_scores.cuh"

namespace twd::attn {

constexpr int kOutputs = kValueDim / 2;  ///< output registers of a thread
constexpr int kQuerySteps = (kQueryDim + 15) / 16;

struct Consumer : RowScores {
    int begin, end;   ///< range of key blocks that this warpgroup visits
    int left;         ///< listed blocks of the tile that are left, from the next one on
    int skipped = 0;  ///< blocks of other warpgroups alone, whose V is still to be released
    RowState state;
    TW_ALIGNED float output[kOutputs];
    TW_ALIGNED u32 packed[kOperands];

    // ---- matrix products
    /// output += P V of the next value block; left in flight.
    TW_DEVICE_ONCE void issue_output() {
        ptx::mbarrier_wait(shared.value_full(value_ring.index), value_ring.parity);
        const u64 b = ptx::wgmma_descriptor_swizzle128(shared.value(value_ring.index),
                                                       kBlockPanelBytes, 1024);
        ptx::wgmma_tie(output);
        ptx::wgmma_tie(packed);
        ptx::wgmma_fence();
        ptx::wgmma<1, 1, ptx::AlongColumns>(Element{}, ptx::Steps<kBlockN / 16>{}, output, packed,
                                            b);
        ptx::wgmma_commit();
    }

    /// Waits for P V; afterwards its registers and its stage are free.
    TW_DEVICE void finish_output() {
        ptx::wgmma_wait<0>();
        ptx::wgmma_tie(output);
        ptx::wgmma_tie(packed);
        release_value();
    }

    /// P as an operand: blocks 2 k and 2 k + 1 of 8 columns are step k, and no data moves between
    /// lanes.
    TW_DEVICE_ONCE void pack_p() {
        TW_UNROLL
        for (int i = 0; i < kOperands; ++i) {
            packed[i] = ptx::pack(Element{}, scores[2 * i], scores[2 * i + 1]);
        }
    }

    // ---- scores
    /// Drops probabilities by the random bits of their pairs; the others are scaled when stored.
    TW_DEVICE void apply_dropout() {
        if constexpr (kDropout) {
            const auto zero = dropped();
            TW_UNROLL
            for (int i = 0; i < kScores; ++i) {
                if (zero[i]) scores[i] = 0.0f;
            }
        }
    }

    /// Recomputes the scores of the current block for the repair, warp by warp from shared memory:
    /// mma.sync has the same accumulator layout as wgmma.
    TW_DEVICE void recompute_scores(int key_stage) {
        const u32 swizzle = lane / 4 << 4;  // 16-byte chunks of a row are permuted by row % 8
        const u32 query = shared.query(query_ring.index) + row_in_tile * 128;
        const u32 key = shared.key(key_stage) + lane / 4 * 128;
        TW_UNROLL
        for (int i = 0; i < kScores; ++i) scores[i] = 0;
#pragma unroll 1
        for (int step = 0; step < kQuerySteps; ++step) {
            const u32 left = (step % 4 * 32 + lane % 4 * 4) ^ swizzle, right = left ^ 16;
            const u32 q = query + step / 4 * kQueryPanelBytes,
                      k = key + step / 4 * kBlockPanelBytes;
            const u32 a[4] = {ptx::load_shared_32(q + left), ptx::load_shared_32(q + 1024 + left),
                              ptx::load_shared_32(q + right),
                              ptx::load_shared_32(q + 1024 + right)};
            TW_UNROLL
            for (int j = 0; j < kBlockN / 8; ++j) {
                const u32 b[2] = {ptx::load_shared_32(k + j * 1024 + left),
                                  ptx::load_shared_32(k + j * 1024 + right)};
                float(&d)[4] = *reinterpret_cast<float(*)[4]>(scores + 4 * j);
                ptx::mma_m16n8k16(Element{}, d, a, b);
            }
        }
        ptx::fence_async_shared();  // orders these reads before TMA overwrites the stage
    }

    // ---- blocks
    TW_DEVICE_ONCE void release_skipped() {
        TW_LOOP
        for (; skipped > 0; --skipped) {
            ptx::mbarrier_wait(shared.value_full(value_ring.index), value_ring.parity);
            release_value();
        }
    }

    /// What this warpgroup sees of the next listed block; waits for the block's K.
    struct Listed {
        int block, left;  ///< left: blocks of its entry from this one on
        int state;
    };
    TW_DEVICE Listed next_listed() const {
        ptx::mbarrier_wait(shared.key_full(key_ring.index), key_ring.parity);
        const uint4 words = ptx::load_shared_128(shared.block(key_ring.index));
        Listed next{static_cast<int>(words.x), static_cast<int>(words.y & 0xffffff),
                    state_of(words.y)};
        if constexpr (kMaskBits && kLengths) {
            if (next.state == kBlockFull) {  // only whole blocks before the end of the keys
                next.left = min(next.left, kv_len() / kBlockN - next.block);
                if (next.left <= 0) next.state = kBlockPartial;
            }
        }
        return next;
    }

    /// May the next block be skipped? The V of the last block visited is still held, so the
    /// producer gets at most kStages blocks ahead, and one less at the end of a tile, where V comes
    /// before the next tile's K. A block that may not be skipped is visited with every pair masked.
    TW_DEVICE bool may_skip() const {
        return skipped < kStages - (left == 1 ? 1 : 0);
    }

    /// Skips the K of a block.
    TW_DEVICE void skip_listed() {
        release_key();
        ++skipped;
        --left;
    }

    /// The first listed block of a tile that this warpgroup visits; it visits at least one.
    TW_DEVICE void enter_listed() {
        left = tile.blocks;
        Listed next = next_listed();
        while (next.state == kBlockDead && left > 1 && may_skip()) {
            skip_listed();
            next = next_listed();
        }
        begin = next.block;
        end = next.state;
    }

    /// Moves on to `tile`: sets this warpgroup's range of blocks and skips the K of blocks outside
    /// it.
    TW_DEVICE_ONCE void enter_tile() {
        if constexpr (kListedBlocks) {
            enter_listed();
            return;
        }
        const int first_row = tile.q_tile * kBlockM;
        begin = kStreamK ? tile.begin : begin_block(first_row, p);
        end = begin + tile.blocks;
        if constexpr (kUpperBound && kWarpgroups > 2) {
            skipped = end - end_block(first_row + warpgroup * 64 + 63, begin, kv_len(), p);
            end -= skipped;
            TW_LOOP
            for (int i = 0; i < skipped; ++i) {
                ptx::mbarrier_wait(shared.key_full(key_ring.index), key_ring.parity);
                release_key();
            }
        }
    }

    /// The first block of a tile, whose scores have arrived: takes the exact maximum, since nothing
    /// is accumulated yet.
    TW_DEVICE_ONCE void first_block() {
        row = tile.q_tile * kBlockM + row_in_tile;
        block = kListedBlocks ? begin : end - 1;
        release_skipped();
        enter_rows();
        if constexpr (kScoreMod) mod.enter_block(block * kBlockN + column);
        bool masked = kUpperBound || kLengths || p.kv_len % kBlockN != 0;
        if constexpr (kListedBlocks) {
            masked = end != kBlockFull;
            --left;
        }
        prepare_scores(masked);
        float unused[2];
        // Compact kernels have one copy: where no key came before, the results are the same.
        if constexpr (TW_IS_COMPACT) state = {{-kInfinity, -kInfinity}, {0, 0}};
        softmax_exact<!TW_IS_COMPACT, true>(scores, state, scale, unused);
        LiveKeys live;
        if constexpr (kHidesKeys) live = live_keys();
        release_key();
        apply_dropout();
        pack_p();
        TW_UNROLL
        for (int i = 0; i < kOutputs; ++i) output[i] = 0;
        if constexpr (kHidesKeys) {
            if (masked) clear_hidden_values(live);
        }
    }

    /// Needed before the P V of a masked block.
    TW_DEVICE_ONCE void clear_hidden_values(const LiveKeys& live) const {
        if (live.all()) return;
        ptx::mbarrier_wait(shared.value_full(value_ring.index), value_ring.parity);
        clear_hidden<kValueDim>(shared.value(value_ring.index), live);
    }

    /// Does every row of this warp have an unmasked key? Until then a speculative maximum fails.
    TW_DEVICE bool rows_have_keys() const {
        return __all_sync(~0u, state.reference[0] > -kInfinity && state.reference[1] > -kInfinity);
    }

    /// The outcome of a block with a speculative row maximum.
    enum class Speculation {
        kHolds,  ///< `scores` holds p
        kFails,  ///< `scores` holds p, which is too large
        kNone,   ///< there is no speculative maximum; `scores` holds products of Q and K
    };

    /// One more block. Its Q K^T and the P V of the previous block are in flight together; the
    /// softmax overlaps with P V, which is left in flight. Masked blocks in which a row may have
    /// its first unmasked key take the exact maximum. `sum` is the sum of p.
    TW_DEVICE_ONCE Speculation speculate_block(bool masked, float (&sum)[2]) {
        issue_scores();
        issue_output();
        ptx::wgmma_wait<1>();
        ptx::wgmma_tie(scores);
        block += kListedBlocks ? 1 : -1;
        if constexpr (kScoreMod) mod.enter_block(block * kBlockN + column);
        if (kExactMaximum || (masked && !rows_have_keys())) return Speculation::kNone;
        // A mod is folded into the exponent if nothing else needs its scores.
        const bool raw = kScoreMod && !masked;
        if (!raw) prepare_scores(masked);
        return softmax_speculative(raw, scores, state, scale, mod, sum) ? Speculation::kHolds
                                                                        : Speculation::kFails;
    }

    /// Repairs a block whose speculative maximum did not hold. What was accumulated before must be
    /// multiplied by `factor`.
    TW_DEVICE_ONCE void repair_block(Speculation speculation, bool masked, const float (&sum)[2],
                                     float (&factor)[2]) {
        if (speculation == Speculation::kFails) {
            if (can_raise(state, sum)) {
                raise_reference(scores, state, sum, factor);
                return;
            }
            recompute_scores(key_ring.index);
        }
        prepare_scores(masked);
        softmax_exact<false, true>(scores, state, scale, factor);
    }

    /// Turns p of a block into the operand of its P V, once the previous P V is done.
    TW_DEVICE_ONCE void finish_block(bool masked) {
        LiveKeys live;
        if constexpr (kHidesKeys) {
            if (masked) live = live_keys();
        }
        release_key();  // only now, since the repair may read it
        apply_dropout();
        finish_output();
        if constexpr (kListedBlocks) release_skipped();
        // NOTE: packing waits for P V. An operand register written while a wgmma is in flight makes
        // ptxas serialise all of them (C7513).
        pack_p();
        if constexpr (kHidesKeys) {
            if (masked) clear_hidden_values(live);
        }
    }

    /// Consecutive blocks that are all masked or all unmasked; none at the end of the tile.
    struct Run {
        bool masked;
        int count;
    };

    TW_DEVICE_ONCE Run next_run() {
        if constexpr (kListedBlocks) {
            while (left > 0) {
                const Listed next = next_listed();
                if (next.state == kBlockDead && may_skip()) {
                    skip_listed();
                    continue;
                }
                block = next.block - 1;
                const bool masked = next.state != kBlockFull;
                const int count = masked ? 1 : next.left;
                left -= count;
                return {masked, count};
            }
            return {false, 0};
        } else if constexpr (kUpperBound) {
            // Blocks left of `inside_end` are below the upper diagonal for all rows here, and each
            // row has an unmasked key before them. Blocks from `inside_begin` on are above the
            // lower diagonal.
            const int first_row = tile.q_tile * kBlockM + warpgroup * 64;
            const int first = query_of(first_row), last = query_of(first_row + 63);
            const int inside_end = max(0, first + p.upper_diagonal) / kBlockN;
            const int inside_begin =
                kLowerBound ? max(0, last + p.lower_diagonal + kBlockN - 1) / kBlockN : 0;
            if (block > inside_end) return {true, block - max(begin, inside_end)};
            if (kLowerBound && block <= inside_begin) return {true, block - begin};
            return {false, block - max(begin, inside_begin)};
        } else {
            return {false, block - begin};
        }
    }

    /// Visits the blocks of a run up to the first whose speculative maximum does not hold.
    TW_DEVICE Speculation visit(bool masked, int& count, float (&sum)[2]) {
        TW_LOOP
        do {
            --count;
            const Speculation speculation = speculate_block(masked, sum);
            if (speculation != Speculation::kHolds) return speculation;
            state.sum[0] += sum[0];
            state.sum[1] += sum[1];
            finish_block(masked);
        } while (count > 0);
        return Speculation::kHolds;
    }

    /// All blocks of a tile but the first: those on the upper diagonal, those inside, those on the
    /// lower diagonal.
    TW_DEVICE void other_blocks() {
        constexpr bool kMasks = kListedBlocks || kUpperBound;
        Run run = next_run();
        while (run.count > 0) {
            const bool masked = kMasks && run.masked;
            float sum[2], factor[2];
            const Speculation speculation = TW_IS_COMPACT ? visit(masked, run.count, sum)
                                            : masked      ? visit(true, run.count, sum)
                                                          : visit(false, run.count, sum);
            // One copy of the repair for both kinds of blocks compiles a quarter faster.
            if (speculation != Speculation::kHolds) {
                repair_block(speculation, masked, sum, factor);
                finish_block(masked);
                multiply_rows(output, factor);
            }
            if (run.count == 0) run = next_run();
        }
    }

    // ---- results
    /// Normalises and stores the tile.
    TW_DEVICE_ONCE void store(const Tile& done) const {
        const int first_row = done.q_tile * kBlockM + row_in_tile;
        float sum[2] = {quad_sum(state.sum[0]), quad_sum(state.sum[1])};
        float reference[2] = {state.reference[0], state.reference[1]};  // of the sums
        float inverse[2] = {sum[0] > 0 ? ptx::reciprocal_approx(sum[0]) : sum[0],
                            sum[1] > 0 ? ptx::reciprocal_approx(sum[1]) : sum[1]};
        const RowPlace first = place_of(done, first_row);
        const RowPlace second =
            kGroup == 1 ? RowPlace{first.head, first.index + 8, first.offset + 8 * p.out_row_stride}
                        : place_of(done, first_row + 8);
        const bool is_split = kStreamK && done.split >= 0;
        if constexpr (kSinks) {
            // One more logit without a value, which may be by far the largest. Splits have none.
            TW_UNROLL
            for (int r = 0; r < 2 && !is_split; ++r) {
                const float sink =
                    bounded_exponent(p.sinks[r == 0 ? first.head : second.head], kLog2E);
                const float largest = fmaxf(reference[r], sink);
                const float base = largest == -kInfinity ? 0.0f : largest;
                const float shrink = ptx::exp2_approx(reference[r] - base);
                sum[r] = fmaf(sum[r], shrink, ptx::exp2_approx(sink - base));
                inverse[r] = sum[r] > 0 ? shrink / sum[r] : sum[r];
                reference[r] = largest;
            }
        }
        if constexpr (kDropout) {
            inverse[0] *= p.keep_scale;
            inverse[1] *= p.keep_scale;
        }
        const int left = (kPacked ? done.rows.q_len : p.q_len * kGroup) - first_row;
        const i64 split = static_cast<i64>(done.split) * p.batch_heads * kGroup * p.q_len;
        if (is_split) {
            float* const out = p.split_out + (split + first.index) * kValueDim;
            store_floats<kValueDim>(output, inverse, out, (second.index - first.index) * kValueDim,
                                    left);
        } else {
            store_rows<kValueDim>(Element{}, output, inverse,
                                  static_cast<u16*>(p.out) + first.offset,
                                  second.offset - first.offset, left);
        }
        if (ptx::lane_index() % 4 == 0) {
            TW_UNROLL
            for (int r = 0; r < 2; ++r) {
                if (8 * r >= left) continue;
                const i64 index = r == 0 ? first.index : second.index;
                if (is_split) {
                    p.split_sums[split + index] = {reference[r], sum[r]};
                    continue;
                }
                p.lse[index] = sum[r] == 0
                                   ? -kInfinity
                                   : score_of_exponent(reference[r] + ptx::log2_approx(sum[r]));
                if constexpr (kRowMaximum) p.row_max[index] = score_of_exponent(state.reference[r]);
            }
        }
    }

    TW_DEVICE void run() {
        tile = fetch();
        if (tile.q_tile < 0) return;
        enter_tile();
        issue_scores();
        ptx::wgmma_wait<0>();
        ptx::wgmma_tie(scores);
        bool more = true;
        while (more) {  // the first block's scores of `tile` have arrived, nothing is in flight
            first_block();
            other_blocks();
            release_query();
            const Tile done = tile;
            if constexpr (kQueryBuffers == 2) {
                // The next tile's first Q K^T keeps the tensor cores busy while this tile's results
                // are stored. NOTE: no branch may come between a wgmma and its wait (C7514), so
                // after the last tile the product uses whatever is there and its result is ignored.
                tile = fetch();
                more = tile.q_tile >= 0;
                if (more) enter_tile();
                issue_output();
                issue_scores(more);
                ptx::wgmma_wait<1>();
                ptx::wgmma_tie(output);
                ptx::wgmma_tie(packed);
                release_value();
                if (!more) release_skipped();  // no copy may be in flight when the CTA ends
                store(done);
            } else {
                issue_output();
                finish_output();
                if constexpr (kListedBlocks) release_skipped();
                store(done);
                tile = fetch();
                if (tile.q_tile < 0) return;
                enter_tile();
                issue_scores();
            }
            ptx::wgmma_wait<0>();
            ptx::wgmma_tie(scores);
        }
    }
};

}  // namespace twd::attn
