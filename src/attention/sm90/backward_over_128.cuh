// The consumer warpgroups of the backward kernel where head_dim > 128, for 64 keys: one accumulates
// dK, the other dV, since registers hold only one of the two. dQ has a separate kernel
// (backward_query.cuh).
#pragma once

#include "attention/sm90/backward_products.cuh"

namespace twd::attn {

// ---- even split, where three stages of Q and dO fit: one warpgroup computes S and dV, the other
// dP and dK

/// S^T, P^T, dV += P^T dO; P also goes to the other warpgroup.
struct EvenValueConsumer : Products {
    Ring<2> score_ring{0, 1};  ///< where P of the block in registers goes
    TW_ALIGNED float scores[kScores];
    TW_ALIGNED float grad_value[kValueDim / 2];
    TW_ALIGNED u32 packed[kPackedScores];

    TW_DEVICE_ONCE void issue_values() {
        ptx::mbarrier_wait(shared.grad_out_full(grad_out_ring.index), grad_out_ring.parity);
        ptx::wgmma_tie(packed);
        ptx::wgmma_tie(grad_value);
        ptx::wgmma_fence();
        multiply_block(grad_value, packed, shared.grad_out(grad_out_ring.index));
        ptx::wgmma_commit();
    }
    TW_DEVICE void finish_values() {
        ptx::wgmma_wait<0>();
        ptx::wgmma_tie(packed);
        ptx::wgmma_tie(grad_value);
        release(shared.grad_out_empty(grad_out_ring.index));
        grad_out_ring.advance();
    }

    template <bool kMasked>
    TW_DEVICE_ONCE void compute() {
        ptx::wgmma_tie(scores);
        compute_p<kMasked>(scores, block_ring.index);
        release(shared.query_empty(block_ring.index));
        block_ring.advance();
    }

    /// The thread with the same index in the other warpgroup reads what this one stores.
    TW_DEVICE_ONCE void pack_p() {
        TW_UNROLL
        for (int i = 0; i < kPackedScores; ++i) {
            packed[i] = ptx::pack(Element{}, scores[2 * i], scores[2 * i + 1]);
        }
        ptx::mbarrier_wait(shared.score_empty(score_ring.index), score_ring.parity);
        const u32 target = shared.score(score_ring.index) + (warp * 32 + ptx::lane_index()) * 16;
        TW_UNROLL
        for (int i = 0; i < kPackedScores; i += 4) {
            ptx::store_shared_128(target + i / 4 * 2048, make_uint4(packed[i], packed[i + 1],
                                                                    packed[i + 2], packed[i + 3]));
        }
        __syncwarp();
        release(shared.score_full(score_ring.index));
        score_ring.advance();
    }

    /// Overlaps the exponentials of one block with dV of the previous one.
    template <bool kMasked>
    TW_DEVICE_ONCE void step() {
        issue_scores(scores);
        issue_values();
        enter_visit();
        ptx::wgmma_wait<1>();
        compute<kMasked>();
        // NOTE: this barrier has long been passed. The wait ends a basic block, without which ptxas
        // waits for dV before most of the exponentials.
        ptx::wgmma_tie(scores);
        ptx::mbarrier_wait(shared.grad_out_full(grad_out_ring.index), grad_out_ring.parity);
        finish_values();
        pack_p();
    }

    /// Clears Q of the next block and dO, which lags by one, of the block before it.
    TW_DEVICE void clear_query_of_next() const {
        if constexpr (!kPacked) return;
        ptx::mbarrier_wait(shared.query_full(query_ring.index), query_ring.parity);
        clear_query_past_end(next_block(), 3);
    }
    TW_DEVICE void clear_grad_out() const {
        if constexpr (kPacked) clear_grad_out_past_end(block, 3);
    }

    TW_DEVICE void all_blocks(int count) {
        clear_hidden_keys(true, false, tile_ring.parity, 3);
        clear_query_of_next();
        issue_scores(scores);
        enter_visit();
        ptx::wgmma_wait<0>();
        compute<true>();
        pack_p();
        TW_LOOP
        for (int i = 1; i < count; ++i) {
            clear_grad_out();
            clear_query_of_next();
            if (TW_IS_COMPACT || next_is_masked()) {
                step<true>();
            } else {
                step<false>();
            }
        }
        clear_grad_out();
        issue_values();
        finish_values();
    }

    TW_DEVICE void run() {
        each_tile<false>(
            grad_value, [&](int count) { all_blocks(count); },
            [&](const KeyRows& rows) {
                store<kValueDim>(grad_value, p.grad_value, p.value_splits, 1.0f, rows);
            });
    }
};

/// dP^T, dS^T, dK += dS^T Q.
struct EvenKeyConsumer : Products {
    Ring<2> ready_ring;  ///< P of the other warpgroup
    TW_ALIGNED float grad_scores[kScores];
    TW_ALIGNED float grad_key[kQueryDim / 2];
    TW_ALIGNED u32 packed[kPackedScores];

    TW_DEVICE_ONCE void issue_sums() {
        ptx::mbarrier_wait(shared.query_full(query_ring.index), query_ring.parity);
        ptx::wgmma_tie(packed);
        ptx::wgmma_tie(grad_key);
        ptx::wgmma_fence();
        multiply_block(grad_key, packed, shared.query(query_ring.index));
        ptx::wgmma_commit();
    }
    TW_DEVICE void finish_sums() {
        ptx::wgmma_wait<0>();
        ptx::wgmma_tie(packed);
        ptx::wgmma_tie(grad_key);
        release(shared.query_empty(query_ring.index));
        query_ring.advance();
    }

    /// From dP^T, which has arrived, and P^T to dS^T.
    TW_DEVICE_ONCE void compute() {
        ptx::wgmma_tie(grad_scores);
        ptx::mbarrier_wait(shared.score_full(ready_ring.index), ready_ring.parity);
        const u32 source = shared.score(ready_ring.index) + (warp * 32 + ptx::lane_index()) * 16;
        const u32 delta = shared.delta(block_ring.index) + ptx::lane_index() % 4 * 8;
        TW_UNROLL
        for (int i = 0; i < kPackedScores; i += 4) {
            const uint4 four = ptx::load_shared_128(source + i / 4 * 2048);
            const u32 words[4] = {four.x, four.y, four.z, four.w};
            TW_UNROLL
            for (int n = 0; n < 4; ++n) {
                // Words 2 j and 2 j + 1: queries 8 j and 8 j + 1 of one key, and of the other.
                const float2 d = ptx::load_shared_f32x2(delta + (i + n) / 2 * 32);
                float& x = grad_scores[2 * (i + n)];
                float& y = grad_scores[2 * (i + n) + 1];
                x = ptx::low(Element{}, words[n]) * (x - d.x);
                y = ptx::high(Element{}, words[n]) * (y - d.y);
            }
        }
        release(shared.score_empty(ready_ring.index));
        ready_ring.advance();
        release(shared.grad_out_empty(block_ring.index));
        block_ring.advance();
    }

    TW_DEVICE_ONCE void pack_grad() {
        TW_UNROLL
        for (int i = 0; i < kPackedScores; ++i) {
            packed[i] = ptx::pack(Element{}, grad_scores[2 * i], grad_scores[2 * i + 1]);
        }
    }

    /// Clears dO of the next block and Q, which is multiplied a block late, of the block before it.
    TW_DEVICE void clear_grad_out_of_next() {
        if constexpr (!kPacked) return;
        // Arrives after the description of the visit.
        ptx::mbarrier_wait(shared.grad_out_full(grad_out_ring.index), grad_out_ring.parity);
        block = next_block();
        visits.advance();
        clear_grad_out_past_end(block, 4);
    }
    TW_DEVICE void clear_query() const {
        if constexpr (kPacked) clear_query_past_end(block, 4);
    }

    TW_DEVICE void all_blocks(int count) {
        clear_hidden_keys(false, true, tile_ring.parity, 4);
        clear_grad_out_of_next();
        issue_grad_scores(grad_scores);
        ptx::wgmma_wait<0>();
        compute();
        pack_grad();
        TW_LOOP
        for (int i = 1; i < count; ++i) {
            clear_query();
            clear_grad_out_of_next();
            issue_grad_scores(grad_scores);
            issue_sums();
            ptx::wgmma_wait<1>();
            compute();
            finish_sums();
            pack_grad();
        }
        clear_query();
        issue_sums();
        finish_sums();
    }

    TW_DEVICE void run() {
        each_tile<true>(
            grad_key, [&](int count) { all_blocks(count); },
            [&](const KeyRows& rows) {
                store<kQueryDim>(grad_key, p.grad_key, p.key_splits, p.scale, rows);
            });
    }
};

// ---- otherwise one warpgroup computes all scores, since mods and dropout need S and dP together

/// S^T, dP^T, P^T, dS^T, dK += dS^T Q; P goes to the other warpgroup through shared memory.
struct KeyConsumer : Products {
    Ring<2> score_ring{0, 1};  ///< where P of the block in registers goes
    TW_ALIGNED float scores[kScores];
    TW_ALIGNED float grad_scores[kScores];
    TW_ALIGNED float grad_key[kQueryDim / 2];
    TW_ALIGNED u32 packed_grad[kPackedScores];

    TW_DEVICE_ONCE void store_p() {
        u32 packed[kPackedScores];
        TW_UNROLL
        for (int i = 0; i < kPackedScores; ++i) {
            packed[i] = ptx::pack(Element{}, scores[2 * i], scores[2 * i + 1]);
        }
        ptx::mbarrier_wait(shared.score_empty(score_ring.index), score_ring.parity);
        store_scores(packed, shared.score(score_ring.index), shared.score_full(score_ring.index));
        score_ring.advance();
    }

    TW_DEVICE_ONCE void pack_grad() {
        TW_UNROLL
        for (int i = 0; i < kPackedScores; ++i) {
            packed_grad[i] = ptx::pack(Element{}, grad_scores[2 * i], grad_scores[2 * i + 1]);
        }
        release(shared.grad_out_empty(block_ring.index));
    }

    TW_DEVICE_ONCE void issue_sums() {
        ptx::wgmma_tie(packed_grad);
        ptx::wgmma_tie(grad_key);
        ptx::wgmma_fence();
        multiply_block(grad_key, packed_grad, shared.query(block_ring.index));
        ptx::wgmma_commit();
    }

    /// dK of the block in registers is done, so its Q may be overwritten.
    TW_DEVICE void release_block() {
        ptx::wgmma_tie(packed_grad);
        release(shared.query_empty(block_ring.index));
        block_ring.advance();
    }

    template <bool kMasked>
    TW_DEVICE_ONCE void step() {
        pack_grad();
        issue_sums();
        issue_scores(scores);
        ptx::wgmma_wait<1>();
        release_block();
        issue_grad_scores(grad_scores);
        compute_scores<kMasked>(scores, grad_scores, [&] { store_p(); });
    }

    TW_DEVICE void all_blocks(int count) {
        clear_hidden_keys(true, true, tile_ring.parity, 3);
        clear_next_past_end(3);
        issue_scores(scores);
        issue_grad_scores(grad_scores);
        compute_scores<true>(scores, grad_scores, [&] { store_p(); });
        TW_LOOP
        for (int i = 1; i < count; ++i) {
            if (next_is_ragged()) clear_next_past_end(3);
            if (TW_IS_COMPACT || next_is_masked()) {
                step<true>();
            } else {
                step<false>();
            }
        }
        pack_grad();
        issue_sums();
        ptx::wgmma_wait<0>();
        release_block();
        ptx::wgmma_tie(grad_key);
    }

    TW_DEVICE void run() {
        each_tile<true>(
            grad_key, [&](int count) { all_blocks(count); },
            [&](const KeyRows& rows) {
                store<kQueryDim>(grad_key, p.grad_key, p.key_splits, p.scale, rows);
            });
    }
};

/// dV += P^T dO.
struct ValueConsumer : Products {
    Ring<2> ready_ring;  ///< P that is not yet multiplied into dV
    TW_ALIGNED float grad_value[kValueDim / 2];

    TW_DEVICE_ONCE void one_block() {
        ptx::mbarrier_wait(shared.grad_out_full(grad_out_ring.index), grad_out_ring.parity);
        ptx::mbarrier_wait(shared.score_full(ready_ring.index), ready_ring.parity);
        const u64 a = ptx::wgmma_descriptor_swizzle128(shared.score(ready_ring.index), 16, 1024);
        const u64 b = ptx::wgmma_descriptor_swizzle128(shared.grad_out(grad_out_ring.index),
                                                       kBlockPanelBytes, 1024);
        ptx::wgmma_tie(grad_value);
        ptx::wgmma_fence();
        ptx::wgmma<1, 1, 1, ptx::AlongColumns, ptx::AlongColumns>(
            Element{}, ptx::Steps<kBlockM / 16>{}, grad_value, a, b);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::wgmma_tie(grad_value);
        release(shared.score_empty(ready_ring.index));
        release(shared.grad_out_empty(grad_out_ring.index));
        ready_ring.advance();
        grad_out_ring.advance();
    }

    TW_DEVICE void run() {
        each_tile<false>(
            grad_value,
            [&](int count) {
                TW_LOOP
                for (int i = 0; i < count; ++i) one_block();
            },
            [&](const KeyRows& rows) {
                store<kValueDim>(grad_value, p.grad_value, p.value_splits,
                                 kDropout ? p.keep_scale : 1.0f, rows);
            });
    }
};

}  // namespace twd::attn
