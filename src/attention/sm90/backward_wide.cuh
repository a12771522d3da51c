// The consumer warpgroups of the backward kernel for wide heads: 64 keys, one warpgroup computes
// scores and sums up dK, the other sums up dV and multiplies dQ. Registers hold one of the two
// sums.
#pragma once

#include "attention/sm90/backward_products.cuh"

namespace tw::attn {

/// S^T, dP^T, P^T, dS^T, dK += dS^T Q; P and dS go to the other warpgroup through shared memory.
struct KeyConsumer : Products {
    Ring<2> score_ring{0, 1};  ///< where dS of the block in registers goes
    u32 probability_parity = 1;
    float scores[kScores], grad_scores[kScores];
    float grad_key[kQueryDim / 2];
    u32 packed_grad[kPackedScores];

    TW_DEVICE void store_p() {
        u32 packed[kPackedScores];
#pragma unroll
        for (int i = 0; i < kPackedScores; ++i) {
            packed[i] = ptx::pack(Element{}, scores[2 * i], scores[2 * i + 1]);
        }
        ptx::mbarrier_wait(shared.probability_empty(), probability_parity);
        probability_parity ^= 1;
        store_scores(packed, shared.probability(), shared.probability_full());
    }

    TW_DEVICE void store_grad() {
#pragma unroll
        for (int i = 0; i < kPackedScores; ++i) {
            packed_grad[i] = ptx::pack(Element{}, grad_scores[2 * i], grad_scores[2 * i + 1]);
        }
        ptx::mbarrier_wait(shared.score_empty(score_ring.index), score_ring.parity);
        store_scores(packed_grad, shared.score(score_ring.index),
                     shared.score_full(score_ring.index));
        score_ring.advance();
        release(shared.grad_out_empty(block_ring.index));
    }

    TW_DEVICE void issue_sums() {
        ptx::wgmma_tie(packed_grad);
        ptx::wgmma_tie(grad_key);
        ptx::wgmma_fence();
        multiply_block(grad_key, packed_grad, shared.query(block_ring.index));
        ptx::wgmma_commit();
    }

    /// dK of the block in registers is done: its Q may be overwritten.
    TW_DEVICE void release_block() {
        ptx::wgmma_tie(packed_grad);
        release(shared.query_empty(block_ring.index));
        block_ring.advance();
    }

    template <bool kMasked>
    TW_DEVICE void step() {
        store_grad();
        issue_sums();
        issue_scores(scores);
        ptx::wgmma_wait<1>();
        release_block();
        issue_grad_scores(grad_scores);
        compute_scores<kMasked>(scores, grad_scores, [&] { store_p(); });
    }

    TW_DEVICE void all_blocks(int count) {
        issue_scores(scores);
        issue_grad_scores(grad_scores);
        compute_scores<true>(scores, grad_scores, [&] { store_p(); });
        for (int i = 1; i < count; ++i) {
            if (next_is_masked()) {
                step<true>();
            } else {
                step<false>();
            }
        }
        store_grad();
        issue_sums();
        ptx::wgmma_wait<0>();
        release_block();
        ptx::wgmma_tie(grad_key);
    }

    TW_DEVICE void run() {
        while (true) {
            ptx::mbarrier_wait(shared.key_full(), tile_parity);
            const uint4 words = ptx::load_shared_128(shared.tile());
            const int tile = words.x, count = words.w;
            if (tile < 0) return;
            enter_tile(tile);
            const KeyRows rows = rows_of_tile();
#pragma unroll
            for (int i = 0; i < kQueryDim / 2; ++i) grad_key[i] = 0;
            ptx::mbarrier_wait(shared.value_full(), tile_parity);
            if (count > 0) all_blocks(count);
            release(shared.tile_empty());
            tile_parity ^= 1;
            store<kQueryDim>(grad_key, p.grad_key, p.scale, rows);
        }
    }
};

/// dV += P^T dO, and dQ^T = K^T dS^T, straight from registers to its sums.
struct ValueConsumer : Products {
    /// Parts of dQ that registers hold, a divisor of their number.
    static constexpr int kTogether = kGradParts == 4                      ? 2
                                     : kGradParts == 3 && kValueDim > 192 ? 1
                                                                          : kGradParts;
    /// Where dQ of a block goes: its first part among the sums, and when.
    struct Target {
        i64 chunk;
        u32 turn;
    };

    Ring<2> ready_ring;  ///< dS whose dQ is not multiplied yet
    u32 probability_parity = 0;
    float grad_value[kValueDim / 2], grad_query[kTogether][kGradColumns / 2];
    Target target;  ///< of the dQ in registers
    u32 rank;       ///< of the tile

    TW_DEVICE void issue_values() {
        ptx::mbarrier_wait(shared.grad_out_full(grad_out_ring.index), grad_out_ring.parity);
        ptx::mbarrier_wait(shared.probability_full(), probability_parity);
        probability_parity ^= 1;
        const u64 a = ptx::wgmma_descriptor_swizzle128(shared.probability(), 16, 1024);
        const u64 b = ptx::wgmma_descriptor_swizzle128(shared.grad_out(grad_out_ring.index),
                                                       kBlockPanelBytes, 1024);
        ptx::wgmma_tie(grad_value);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kBlockM / 16; ++step) {  // 16 queries each
            const u64 rows = ptx::wgmma_descriptor_step(step * 16 * 128);
            ptx::wgmma<1, 1, 1>(Element{}, grad_value, a + rows, b + rows);
        }
        ptx::wgmma_commit();
    }

    /// dV of the block is done: its P and dO may be overwritten.
    TW_DEVICE void release_values() {
        ptx::wgmma_tie(grad_value);
        release(shared.probability_empty());
        release(shared.grad_out_empty(grad_out_ring.index));
        grad_out_ring.advance();
    }

    TW_DEVICE Target next_target() {
        const uint4 visit = ptx::load_shared_128(shared.visit(visits.index));
        visits.advance();
        const int of_head = (kPacked ? tile_word(12) : 0) + static_cast<int>(visit.x);
        const i64 row = static_cast<i64>(query_head_row(tile_word(1), visit.y, p)) * p.q_blocks;
        return {(row + of_head) * kGradParts, visit.z >> kTurnShift};
    }

    /// No product may be in flight: the loop is a branch.
    TW_DEVICE void take_turn() const {
        if (ptx::elect_lane()) {
            while (ptx::load_acquire(p.turns + target.chunk) != target.turn) {
            }
        }
        __syncwarp();
    }
    /// Once all adds to the sums that begin with `chunk` are done.
    TW_DEVICE void pass_turn(i64 chunk) const {
        ptx::fence_device();
        ptx::named_barrier_sync(1, 128);
        if (warp == 0 && ptx::elect_lane()) ptx::store_release(p.turns + chunk, rank + 1);
    }

    /// Adds a part of dQ, in the order of the registers.
    TW_DEVICE void add_part(int part) {
        float(&sums)[kGradColumns / 2] = grad_query[part % kTogether];
        ptx::wgmma_tie(sums);
        float* const to = p.grad_query_sums + (target.chunk + part) * (kGradBytes / 4) +
                          (warp * 32 + ptx::lane_index()) * 4;
#pragma unroll
        for (int i = 0; i < kGradColumns / 2; i += 4) {
            ptx::reduce_add(to + i / 4 * 512,
                            make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
        }
    }

    /// Adds the parts of dQ from kPart on, of which kTogether are in flight; kNext: while the last
    /// of them are added the next block's dV is multiplied.
    template <int kPart, bool kNext>
    TW_DEVICE void add_parts() {
        if constexpr (kPart < kGradParts) {
            constexpr int kLast = kGradParts - kTogether;
            constexpr int kLater = (kPart < kLast ? kTogether : kGradParts - kPart) - 1;
            if constexpr (kNext && kPart == kLast) issue_values();
            ptx::wgmma_wait<kLater + (kNext && kPart >= kLast ? 1 : 0)>();
            add_part(kPart);
            if constexpr (kPart < kLast) {
                issue_grad_query(grad_query[kPart % kTogether], ready_ring.index,
                                 kPart + kTogether);
            }
            add_parts<kPart + 1, kNext>();
        }
    }

    TW_DEVICE void issue_first_parts() {
        ptx::mbarrier_wait(shared.score_full(ready_ring.index), ready_ring.parity);
#pragma unroll
        for (int part = 0; part < kTogether; ++part) {
            issue_grad_query(grad_query[part], ready_ring.index, part);
        }
    }
    TW_DEVICE void release_scores() {
        release(shared.score_empty(ready_ring.index));
        ready_ring.advance();
    }

    // Nothing is in flight before and after these.
    /// dQ of a block whose dV has been multiplied before.
    template <bool kNext>
    TW_DEVICE void one_block() {
        target = next_target();
        issue_first_parts();
        add_parts<0, kNext>();
        release_scores();
        if constexpr (kNext) {
            ptx::wgmma_wait<0>();
            release_values();
        }
    }

    /// dV and dQ of a block, where sums have an order. Other tiles wait for this dQ, so it does not
    /// wait for the next block's P; that the adds before it are done is told beside its products.
    template <bool kFirst>
    TW_DEVICE void ordered_block() {
        issue_values();
        const i64 added = target.chunk;
        target = next_target();
        issue_first_parts();
        if constexpr (!kFirst) pass_turn(added);
        ptx::wgmma_wait<0>();
        release_values();
        take_turn();
        add_parts<0, false>();
        release_scores();
    }

    TW_DEVICE void all_blocks(int count) {
        if constexpr (kDeterministic) {
            ordered_block<true>();
            for (int i = 1; i < count; ++i) ordered_block<false>();
            pass_turn(target.chunk);
        } else {
            issue_values();
            ptx::wgmma_wait<0>();
            release_values();
            for (int i = 1; i < count; ++i) one_block<true>();
            one_block<false>();
        }
    }

    TW_DEVICE void run() {
        while (true) {
            ptx::mbarrier_wait(shared.key_full(), tile_parity);
            const uint4 words = ptx::load_shared_128(shared.tile());
            const int tile = words.x, count = words.w;
            if (tile < 0) return;
            enter_tile(tile);
            rank = tile_word(6);
            const KeyRows rows = rows_of_tile();
#pragma unroll
            for (int i = 0; i < kValueDim / 2; ++i) grad_value[i] = 0;
            if (count > 0) all_blocks(count);
            release(shared.tile_empty());
            tile_parity ^= 1;
            store<kValueDim>(grad_value, p.grad_value, kDropout ? p.keep_scale : 1.0f, rows);
        }
    }
};

}  // namespace tw::attn
