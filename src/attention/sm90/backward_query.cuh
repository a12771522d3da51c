// dQ where head_dim > 128, for sm_90a, next to the kernel that accumulates dK and dV: computes S
// and dP again, by tiles of queries as in the forward pass.
// clang-format off
//
// Why        with dQ split between tiles of keys, the adds in L2 and their order would take longer than two of seven
//            products; here it stays in registers and has one order
// Work       a tile of 128 queries, all blocks of 64 keys that its rows see
// Products   S = Q K^T, dP = dO V^T; dQ += dS K one block later, with dS in registers
// Roles      one producer thread (TMA), two warpgroups of 64 query rows
// Pipeline   Q and dO once per tile, K in two buffers, V in two if they fit, else in one
// Shared     225 KB at D = 256, 160 KB at D = 192 with Dv = 128
// clang-format on
#pragma once

#include "attention/sm90/forward_producer.cuh"
#include "attention/sm90/forward_scores.cuh"
#include "attention/sm90/row_lse.cuh"

namespace twd::attn {

struct QueryConsumer : RowScores {
    int begin;               ///< last block of a range
    int left;                ///< blocks of the tile that are left, from the next one on
    Ring<kStages> sum_ring;  ///< K of the block whose dS is packed
    float lse[2], delta[2];
    TW_ALIGNED float grad_scores[kScores];
    TW_ALIGNED float grad_query[kQueryDim / 2];
    TW_ALIGNED u32 packed[kOperands];

    // ---- matrix products
    /// dP = dO V^T of the next block; left in flight.
    TW_DEVICE_ONCE void issue_grad_scores() {
        ptx::mbarrier_wait(shared.value_full(value_ring.index), value_ring.parity);
        issue_rows<kValueDim>(grad_scores, buffer_here(shared.grad_out(query_ring.index)),
                              buffer_here(shared.value(value_ring.index)));
    }

    /// dQ += dS K of the packed block; left in flight.
    TW_DEVICE_ONCE void issue_sums() {
        const u64 b = ptx::wgmma_descriptor_swizzle128(buffer_here(shared.key(sum_ring.index)),
                                                       kBlockPanelBytes, 1024);
        ptx::wgmma_tie(grad_query);
        ptx::wgmma_tie(packed);
        ptx::wgmma_fence();
        ptx::wgmma<1, 1, ptx::AlongColumns>(Element{}, ptx::Steps<kBlockN / 16>{}, grad_query,
                                            packed, b);
        ptx::wgmma_commit();
    }

    /// dQ of a block is done, so its K may be overwritten.
    TW_DEVICE_ONCE void release_sums() {
        ptx::wgmma_tie(grad_query);
        ptx::wgmma_tie(packed);
        release(shared.key_empty(sum_ring.index));
        sum_ring.advance();
    }

    // ---- scores
    /// dP after dropout, without subtracting delta.
    TW_DEVICE_ONCE void prepare_grads() {
        if constexpr (kDropout) {
            const auto zero = dropped();
            TW_UNROLL
            for (int i = 0; i < kScores; ++i) {
                grad_scores[i] = zero[i] ? 0.0f : grad_scores[i] * p.keep_scale;
            }
        }
        TW_UNROLL
        for (int i = 0; i < kScores; ++i) grad_scores[i] -= delta[i / 2 % 2];
    }

    /// scores = P, from S, which is in flight after dP.
    template <bool kMasked>
    TW_DEVICE_ONCE void compute_p() {
        ptx::wgmma_tie(scores);
        prepare_scores(kMasked);
        TW_UNROLL
        for (int i = 0; i < kScores; ++i) {
            scores[i] = ptx::exp2_approx(fmaf(scores[i], scale, -lse[i / 2 % 2]));
        }
    }

    /// From S and dP, both in flight in this order, to packed dS. Nothing is left in flight.
    template <bool kMasked>
    TW_DEVICE_ONCE void compute_scores() {
        if constexpr (kScoreMod) {
            mod.enter_block(block * kBlockN + column);
            ptx::wgmma_wait<0>();
            ptx::wgmma_tie(grad_scores);
            float raw[kScores];
            TW_UNROLL
            for (int i = 0; i < kScores; ++i) raw[i] = scores[i];
            compute_p<kMasked>();
            prepare_grads();
            TW_UNROLL
            for (int j = 0; j < kScores / 4; ++j) {
                const ScoreMod::Columns columns = mod.columns_at(j);
                TW_UNROLL
                for (int i = 4 * j; i < 4 * j + 4; ++i) {
                    grad_scores[i] = mod.gradient(raw[i], j, i % 2, i / 2 % 2, columns,
                                                  scores[i] * grad_scores[i]);
                }
            }
        } else {
            ptx::wgmma_wait<1>();
            compute_p<kMasked>();
            // NOTE: this barrier has long been passed. The wait ends a basic block, without which
            // ptxas waits for dP before most of the exponentials.
            ptx::wgmma_tie(scores);
            ptx::mbarrier_wait(shared.value_full(value_ring.index), value_ring.parity);
            ptx::wgmma_wait<0>();
            ptx::wgmma_tie(grad_scores);
            prepare_grads();
            TW_UNROLL
            for (int i = 0; i < kScores; ++i) grad_scores[i] *= scores[i];
        }
        release_value();
        key_ring.advance();  // its stage stays in use until dQ is multiplied
        TW_UNROLL
        for (int i = 0; i < kOperands; ++i) {
            packed[i] = ptx::pack(Element{}, grad_scores[2 * i], grad_scores[2 * i + 1]);
        }
    }

    // ---- blocks
    /// Moves on to the next block, whose K has arrived if it is listed. Is some of the block
    /// masked?
    TW_DEVICE_ONCE bool enter_block() {
        --left;
        if constexpr (kListedBlocks) {
            ptx::mbarrier_wait(shared.key_full(key_ring.index), key_ring.parity);
            const uint4 words = ptx::load_shared_128(shared.block(key_ring.index));
            block = words.x;
            return state_of(words.y) != kBlockFull ||
                   (kMaskBits && kLengths && (block + 1) * kBlockN > kv_len());
        }
        --block;
        const int first = block * kBlockN, query = tile.q_tile * kBlockM + warpgroup * 64;
        return first + kBlockN > kv_len() ||
               (kUpperBound && first + kBlockN - 1 > query + p.upper_diagonal) ||
               (kLowerBound && first < query + 63 + p.lower_diagonal);
    }

    /// Needed before the products of a masked block, which read K and V.
    TW_DEVICE_ONCE void clear_hidden_keys() const {
        if constexpr (!kHidesKeys) return;
        ptx::mbarrier_wait(shared.key_full(key_ring.index), key_ring.parity);
        const LiveKeys live = live_keys();
        if (live.all()) return;
        ptx::mbarrier_wait(shared.value_full(value_ring.index), value_ring.parity);
        clear_hidden<kQueryDim>(shared.key(key_ring.index), live);
        clear_hidden<kValueDim>(shared.value(value_ring.index), live);
    }

    template <bool kMasked>
    TW_DEVICE_ONCE void first_block() {
        clear_hidden_keys();
        issue_scores();
        issue_grad_scores();
        compute_scores<kMasked>();
    }

    /// One more block: its scores overlap with dQ of the previous one.
    template <bool kMasked>
    TW_DEVICE_ONCE void next_block() {
        if constexpr (kMasked) clear_hidden_keys();
        issue_sums();
        issue_scores();
        issue_grad_scores();
        ptx::wgmma_wait<2>();
        release_sums();
        compute_scores<kMasked>();
    }

    /// Moves on to `tile`, skipping the blocks past this warpgroup's own diagonal.
    TW_DEVICE void enter_tile() {
        row = tile.q_tile * kBlockM + row_in_tile;
        enter_rows();
        const RowPlace place = place_of(tile, row);
        const int rows = (kPacked ? tile.rows.q_len : p.q_len) - row;
        TW_UNROLL
        for (int r = 0; r < 2; ++r) {
            const bool exists = 8 * r < rows;
            const float sum = exists ? p.lse[place.index + 8 * r] : -kInfinity;
            lse[r] = has_gradient(sum) ? sum * kLog2E : kInfinity;  // makes P 0
            delta[r] = exists ? p.delta[place.index + 8 * r] : 0.0f;
        }
        left = tile.blocks;
        if constexpr (!kListedBlocks) {
            const int first_row = tile.q_tile * kBlockM;
            begin = begin_block(first_row, p);
            block = begin + tile.blocks;
            if constexpr (kUpperBound) {
                const int end = end_block(first_row + warpgroup * 64 + 63, begin, kv_len(), p);
                TW_LOOP
                for (; block > end; --block, --left) {
                    ptx::mbarrier_wait(shared.key_full(key_ring.index), key_ring.parity);
                    release_key();
                    sum_ring.advance();
                    ptx::mbarrier_wait(shared.value_full(value_ring.index), value_ring.parity);
                    release_value();
                }
            }
        }
    }

    TW_DEVICE void run() {
        while (true) {
            tile = fetch();
            if (tile.q_tile < 0) return;
            enter_tile();
            TW_UNROLL
            for (int i = 0; i < kQueryDim / 2; ++i) grad_query[i] = 0;
            enter_block();
            first_block<true>();
            while (left > 0) {
                // Bits of blocks that are not masked do not exist.
                if (enter_block() || (TW_IS_COMPACT && !kMaskBits)) {
                    next_block<true>();
                } else {
                    next_block<false>();
                }
            }
            release_query();
            issue_sums();
            ptx::wgmma_wait<0>();
            release_sums();
            const RowPlace place = place_of(tile, row);
            const float factor[2] = {p.scale, p.scale};
            store_rows<kQueryDim>(Element{}, grad_query, factor,
                                  static_cast<u16*>(p.out) + place.offset, 8 * p.out_row_stride,
                                  (kPacked ? tile.rows.q_len : p.q_len) - row);
        }
    }
};

}  // namespace twd::attn

extern "C" __global__ void __launch_bounds__(128 * (twd::attn::kWarpgroups + 1), 1)
    attention_backward_query(const __grid_constant__ twd::TensorMap query_map,
                             const __grid_constant__ twd::TensorMap key_map,
                             const __grid_constant__ twd::TensorMap value_map,
                             const __grid_constant__ twd::TensorMap grad_out_map,
                             const __grid_constant__ twd::attn::ForwardParameters p,
                             const __grid_constant__ twd::attn::ModArguments mod_arguments) {
    using namespace twd;
    using namespace twd::attn;
    extern __shared__ __align__(1024) u8 memory[];
    const Shared shared{shared_address(memory)};
    const u32 role = enter_kernel(shared, &query_map, &key_map, &value_map, &grad_out_map);
    if (role == 0) {
        ptx::registers_decrease<kProducerRegisters>();
        if (threadIdx.x / 32 == 0 && ptx::elect_lane()) {
            Producer{&query_map, &key_map, &value_map,           &grad_out_map,
                     p,          shared,   ptx::l2_evict_last(), ptx::l2_evict_first()}
                .run();
        }
    } else {
        ptx::registers_increase<kConsumerRegisters>();
        QueryConsumer{{p, shared, role - 1, threadIdx.x % 128, {mod_arguments, p.scale}}}.run();
    }
}
