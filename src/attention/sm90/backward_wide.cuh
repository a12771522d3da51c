// The consumer warpgroups of the backward kernel for wide heads: 64 keys, one warpgroup sums up dK,
// the other dV. Registers hold one of the two sums, so both compute S.
#pragma once

#include "attention/sm90/backward_products.cuh"

namespace tw::attn {

/// S^T, dP^T, dS^T, dK += dS^T Q; dS goes to the other warpgroup.
struct KeyConsumer : Products {
    Ring<2> score_ring{0, 1};  ///< where dS of the block in registers goes
    float scores[kScores], grad_scores[kScores];
    float grad_key[kQueryDim / 2];
    u32 packed_grad[kPackedScores];

    TW_DEVICE void pack_scores() {
#pragma unroll
        for (int i = 0; i < kPackedScores; ++i) {
            packed_grad[i] = ptx::pack(Element{}, grad_scores[2 * i], grad_scores[2 * i + 1]);
        }
        ptx::mbarrier_wait(shared.score_empty(score_ring.index), score_ring.parity);
        store_scores(packed_grad, score_ring.index);
        score_ring.advance();
    }

    TW_DEVICE void issue_sums() {
        ptx::wgmma_tie(packed_grad);
        ptx::wgmma_tie(grad_key);
        ptx::wgmma_fence();
        multiply_block(grad_key, packed_grad, shared.query(block_ring.index));
        ptx::wgmma_commit();
    }

    TW_DEVICE void release_block() {
        ptx::wgmma_tie(packed_grad);
        release(shared.query_empty(block_ring.index));
        release(shared.grad_out_empty(block_ring.index));
        block_ring.advance();
    }

    template <bool kMasked>
    TW_DEVICE void step() {
        pack_scores();
        issue_sums();
        issue_scores(scores);
        ptx::wgmma_wait<1>();
        release_block();
        issue_grad_scores(grad_scores);
        compute_scores<kMasked>(scores, grad_scores);
    }

    TW_DEVICE void all_blocks(int count) {
        issue_scores(scores);
        issue_grad_scores(grad_scores);
        compute_scores<true>(scores, grad_scores);
        for (int i = 1; i < count; ++i) {
            if (next_is_masked()) {
                step<true>();
            } else {
                step<false>();
            }
        }
        pack_scores();
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

/// S^T, P^T, dV += P^T dO, and dQ^T = K^T dS^T, a block late, straight to its sums.
struct ValueConsumer : Products {
    /// Where dQ of the block in registers goes: its first part among the sums, and when.
    struct Target {
        i64 chunk;
        u32 turn;
    };

    Ring<2> ready_ring;  ///< dS whose dQ is not multiplied yet
    float scores[kScores];
    float grad_value[kValueDim / 2], grad_query[kGradColumns / 2];
    u32 packed_p[kPackedScores];
    Target late;  ///< of that dQ
    u32 rank;     ///< of the tile

    TW_DEVICE void pack_p() {
#pragma unroll
        for (int i = 0; i < kPackedScores; ++i) {
            packed_p[i] = ptx::pack(Element{}, scores[2 * i], scores[2 * i + 1]);
        }
    }

    TW_DEVICE void issue_sums() {
        ptx::mbarrier_wait(shared.grad_out_full(grad_out_ring.index), grad_out_ring.parity);
        ptx::wgmma_tie(packed_p);
        ptx::wgmma_tie(grad_value);
        ptx::wgmma_fence();
        multiply_block(grad_value, packed_p, shared.grad_out(grad_out_ring.index));
        ptx::wgmma_commit();
        grad_out_ring.advance();
    }

    TW_DEVICE void release_block() {
        ptx::wgmma_tie(packed_p);
        release(shared.query_empty(block_ring.index));
        release(shared.grad_out_empty(block_ring.index));
        block_ring.advance();
    }

    /// P^T of the block whose S^T has arrived.
    template <bool kMasked>
    TW_DEVICE void compute_values() {
        if constexpr (kScoresTogether) {
            float unused[1];
            compute_together<kMasked>(scores, unused, block_ring.index);
        } else {
            compute_p<kMasked>(scores, block_ring.index);
        }
    }

    TW_DEVICE Target target_of_block() const {
        const int of_head = (kPacked ? tile_word(12) : 0) + block;
        const i64 row = static_cast<i64>(query_head_row(tile_word(1), head, p)) * p.q_blocks;
        return {(row + of_head) * kGradParts, static_cast<u32>(states) >> kTurnShift};
    }

    /// No product may be in flight: the loop is a branch.
    TW_DEVICE void take_turn() const {
        if constexpr (kDeterministic) {
            if (ptx::elect_lane()) {
                while (ptx::load_acquire(p.turns + late.chunk) != late.turn) {
                }
            }
            __syncwarp();
        }
    }
    TW_DEVICE void pass_turn() const {
        if constexpr (kDeterministic) {
            ptx::fence_device();
            ptx::named_barrier_sync(1, 128);
            if (warp == 0 && ptx::elect_lane()) ptx::store_release(p.turns + late.chunk, rank + 1);
        }
    }

    TW_DEVICE void issue_part(int part) {
        if (part == 0) ptx::mbarrier_wait(shared.score_full(ready_ring.index), ready_ring.parity);
        issue_grad_query(grad_query, ready_ring.index, part);
    }

    /// Adds a part of dQ, in the order of the registers.
    TW_DEVICE void add_part(int part) {
        ptx::wgmma_tie(grad_query);
        float* const target = p.grad_query_sums + (late.chunk + part) * (kGradBytes / 4) +
                              (warp * 32 + ptx::lane_index()) * 4;
#pragma unroll
        for (int i = 0; i < kGradColumns / 2; i += 4) {
            ptx::reduce_add(target + i / 4 * 512,
                            make_float4(grad_query[i], grad_query[i + 1], grad_query[i + 2],
                                        grad_query[i + 3]));
        }
    }

    /// Adds all parts of dQ, of which the first has arrived.
    TW_DEVICE void all_parts() {
        add_part(0);
#pragma unroll
        for (int part = 1; part < kGradParts; ++part) {
            issue_part(part);
            ptx::wgmma_wait<0>();
            add_part(part);
        }
        release(shared.score_empty(ready_ring.index));
        ready_ring.advance();
        pass_turn();
    }

    /// dV of the block in registers, S^T of the next one and dQ of the one before.
    template <bool kMasked, bool kFirst>
    TW_DEVICE void step() {
        pack_p();
        if constexpr (!kFirst) take_turn();
        issue_sums();
        issue_scores(scores);
        ptx::wgmma_wait<1>();
        ptx::wgmma_tie(grad_value);
        release_block();
        if constexpr (!kFirst) issue_part(0);
        const Target target = target_of_block();
        enter_visit();
        ptx::wgmma_wait<kFirst ? 0 : 1>();
        ptx::wgmma_tie(scores);
        compute_values<kMasked>();
        if constexpr (!kFirst) {
            ptx::wgmma_wait<0>();
            all_parts();
        }
        late = target;
    }

    /// dQ of the last block whose dQ is late.
    TW_DEVICE void finish_late() {
        take_turn();
        issue_part(0);
        ptx::wgmma_wait<0>();
        all_parts();
    }

    TW_DEVICE void all_blocks(int count) {
        issue_scores(scores);
        enter_visit();
        ptx::wgmma_wait<0>();
        ptx::wgmma_tie(scores);
        compute_values<true>();
        if (count > 1) step<true, true>();
        for (int i = 2; i < count; ++i) {
            if (next_is_masked()) {
                step<true, false>();
            } else {
                step<false, false>();
            }
        }
        pack_p();
        issue_sums();
        ptx::wgmma_wait<0>();
        release_block();
        ptx::wgmma_tie(grad_value);
        if (count > 1) finish_late();
        late = target_of_block();
        finish_late();
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
