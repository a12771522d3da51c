// Matrix products of the backward kernel, and what its consumer warpgroups share around them.
#pragma once

#include "attention/sm90/backward_scores.cuh"
#include "cuda/device/ptx/matrix_move.cuh"
#include "wgmma_shapes.cuh"

namespace twd::attn {

constexpr int steps(int dim) {
    return (dim + 15) / 16;
}

/// The scores of a block are kept transposed, keys x queries, so that P^T and dS^T are the left
/// operands of dV += P^T dO and dK += dS^T Q without leaving their registers. Functions that issue
/// products leave them in flight.
struct Products : Scores {
    Ring<kStages> query_ring, grad_out_ring;  ///< next block to multiply
    Ring<kStages> block_ring;                 ///< block whose scores are in registers

    /// One arrival per warp, since each waits for its own part of the wgmma.
    TW_DEVICE void release(u32 barrier) const {
        if (ptx::elect_lane()) ptx::mbarrier_arrive(barrier);
    }

    TW_DEVICE void clear_query_past_end(int of_block, u32 own_barrier) const {
        clear_past_end(of_block, shared.query(query_ring.index), panels(kQueryDim),
                       shared.query_full(query_ring.index), query_ring.parity, own_barrier);
    }
    TW_DEVICE void clear_grad_out_past_end(int of_block, u32 own_barrier) const {
        clear_past_end(of_block, shared.grad_out(grad_out_ring.index), panels(kValueDim),
                       shared.grad_out_full(grad_out_ring.index), grad_out_ring.parity,
                       own_barrier);
    }
    /// Clears Q and dO of the next visit.
    TW_DEVICE void clear_next_past_end(u32 own_barrier) const {
        if constexpr (!kPacked) return;
        ptx::mbarrier_wait(shared.query_full(query_ring.index), query_ring.parity);
        clear_query_past_end(next_block(), own_barrier);
        clear_grad_out_past_end(next_block(), own_barrier);
    }
    TW_DEVICE bool next_is_ragged() const { return kPacked && (next_states & kRaggedRows) != 0; }

    /// d = A B^T over kDim columns: this warpgroup's rows of a tile (K, V) times a block (Q, dO).
    template <int kDim>
    TW_DEVICE void issue_transposed(float (&d)[kScores], u32 tile, u32 rows) {
        // NOTE: where head_dim > 128, descriptors of tiles kept for all blocks would be spilled.
        const u32 strip_rows = kOver128 ? ptx::uniform_here(tile) : tile + strip * 64 * 128;
        const u64 a = ptx::wgmma_descriptor_swizzle128(strip_rows, 16, 1024);
        const u64 b = ptx::wgmma_descriptor_swizzle128(rows, 16, 1024);
        ptx::wgmma_tie(d);
        ptx::wgmma_fence();
        ptx::wgmma<0, 0, 0, ptx::AlongRows<kTilePanelBytes>, ptx::AlongRows<kBlockPanelBytes>>(
            Element{}, ptx::Steps<steps(kDim)>{}, d, a, b);
        ptx::wgmma_commit();
    }

    /// S^T = K Q^T of the next block.
    TW_DEVICE_ONCE void issue_scores(float (&scores)[kScores]) {
        ptx::mbarrier_wait(shared.query_full(query_ring.index), query_ring.parity);
        multiply_query(scores);
    }
    TW_DEVICE void multiply_query(float (&scores)[kScores]) {
        issue_transposed<kQueryDim>(scores, shared.key(tile_ring.index),
                                    shared.query(query_ring.index));
        query_ring.advance();
    }

    /// dP^T = V dO^T of the next block.
    TW_DEVICE_ONCE void issue_grad_scores(float (&grad_scores)[kScores]) {
        ptx::mbarrier_wait(shared.grad_out_full(grad_out_ring.index), grad_out_ring.parity);
        multiply_grad_out(grad_scores);
    }
    TW_DEVICE void multiply_grad_out(float (&grad_scores)[kScores]) {
        issue_transposed<kValueDim>(grad_scores, shared.value(),
                                    shared.grad_out(grad_out_ring.index));
        grad_out_ring.advance();
    }

    /// d += A B, with A (keys x queries) in registers and B the rows of a block.
    template <int kCount>
    TW_DEVICE void multiply_block(float (&d)[kCount], const u32 (&a)[kPackedScores], u32 rows) {
        const u64 b = ptx::wgmma_descriptor_swizzle128(rows, kBlockPanelBytes, 1024);
        ptx::wgmma<1, 1, ptx::AlongColumns>(Element{}, ptx::Steps<kBlockM / 16>{}, d, a, b);
    }

    /// One part of dQ = dS K from the dS in a buffer: 64 rows of it, or 64 columns as rows of dQ^T
    /// = K^T dS^T. kAdd: added to what `grad_query` holds.
    template <bool kAdd>
    TW_DEVICE_ONCE void issue_grad_query(float (&grad_query)[kGradColumns / 2], int buffer,
                                         u32 part) {
        const u32 rows = shared.score(buffer) + (kGradTransposed ? 0 : part * 8192);
        const u32 tile =
            shared.key(tile_ring.index) + (kGradTransposed ? part * kTilePanelBytes : 0);
        const u64 scores_at = ptx::wgmma_descriptor_swizzle128(rows, 16, 1024);
        const u64 keys_at = ptx::wgmma_descriptor_swizzle128(tile, kTilePanelBytes, 1024);
        ptx::wgmma_tie(grad_query);
        ptx::wgmma_fence();
        using OfScores = ptx::AlongRows<kBlockPanelBytes>;
        constexpr ptx::Steps<kBlockN / 16> kSteps{};  // 16 keys each
        if constexpr (kGradTransposed) {
            ptx::wgmma<kAdd, 0, 1, ptx::AlongColumns, OfScores>(Element{}, kSteps, grad_query,
                                                                keys_at, scores_at);
        } else {
            ptx::wgmma<kAdd, 1, 0, OfScores, ptx::AlongColumns>(Element{}, kSteps, grad_query,
                                                                scores_at, keys_at);
        }
        ptx::wgmma_commit();
    }

    /// Stores P or dS of this strip in rows of queries, where other products read it.
    TW_DEVICE void store_scores(const u32 (&packed)[kPackedScores], u32 buffer, u32 full) const {
        // Lane 8 i + r stores row r of the i-th 8 x 8 matrix: keys in swizzled chunks of 16 bytes.
        const u32 lane = ptx::lane_index(), row = lane / 16 * 8 + lane % 8;
        const u32 chunk = warp * 2 + lane / 8 % 2;
        const u32 target =
            buffer + strip * kBlockPanelBytes + row * 128 + ((chunk ^ lane % 8) << 4);
        TW_UNROLL
        for (int i = 0; i < kPackedScores; i += 4) {
            ptx::stmatrix_transposed(target + i / 4 * 2048,
                                     *reinterpret_cast<const u32(*)[4]>(packed + i));
        }
        ptx::fence_async_shared();
        __syncwarp();
        release(full);
    }

    /// From S^T and dP^T, both in flight in this order, to P^T and dS^T. Calls `with_p` once P^T is
    /// there.
    template <bool kMasked, typename WithP>
    TW_DEVICE void compute_scores(float (&scores)[kScores], float (&grad_scores)[kScores],
                                  const WithP& with_p) {
        enter_visit();
        if constexpr (kScoresTogether) {
            ptx::wgmma_wait<0>();
            ptx::wgmma_tie(scores);
            ptx::wgmma_tie(grad_scores);
            compute_together<kMasked>(scores, grad_scores, block_ring.index);
            with_p();
            return;
        }
        ptx::wgmma_wait<1>();
        ptx::wgmma_tie(scores);
        compute_p<kMasked>(scores, block_ring.index);
        with_p();
        // NOTE: this barrier has long been passed. The wait ends a basic block, without which ptxas
        // waits for dP before most of the exponentials.
        ptx::wgmma_tie(scores);
        ptx::mbarrier_wait(shared.grad_out_full(block_ring.index), block_ring.parity);
        ptx::wgmma_wait<0>();
        ptx::wgmma_tie(grad_scores);
        compute_grad_scores(scores, grad_scores, block_ring.index);
    }

    /// Processes the tiles of keys that the producer hands out, until there are none left:
    /// `all_blocks(count)` adds the blocks of one to `sums`, `store_sums(rows)` stores them.
    template <bool kReadsValues, int kCount, typename AllBlocks, typename StoreSums>
    TW_DEVICE void each_tile(float (&sums)[kCount], const AllBlocks& all_blocks,
                             const StoreSums& store_sums) {
        while (true) {
            ptx::mbarrier_wait(shared.key_full(), tile_ring.parity);
            const uint4 words = ptx::load_shared_128(shared.tile());
            const int tile = words.x, count = words.w;
            if (tile < 0) return;
            enter_tile(tile);
            const KeyRows rows = rows_of_tile();
            TW_UNROLL
            for (int i = 0; i < kCount; ++i) sums[i] = 0;
            if constexpr (kReadsValues) ptx::mbarrier_wait(shared.value_full(), tile_ring.parity);
            if (count > 0) all_blocks(count);
            release(shared.tile_empty());
            tile_ring.advance();
            store_sums(rows);
        }
    }
};

}  // namespace twd::attn
