// A consumer warpgroup of the backward kernel: 64 keys, whose dK and dV stay in registers.
#pragma once

#include "attention/sm90/backward_layout.cuh"
#include "attention/sm90/store_rows.cuh"
#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/matrix_move.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/sync.cuh"
#include "wgmma_shapes.cuh"

namespace tw::attn {

constexpr int kScores = kBlockM / 2;  ///< registers of a thread: scores of a block,
constexpr int kPacked = kBlockM / 4;  ///< and the same packed as an operand

constexpr int steps(int dim) {
    return (dim + 15) / 16;
}

/// The scores of a block are kept transposed, keys x queries: so P^T and dS^T are the left operands
/// of dV += P^T dO and dK += dS^T Q without leaving their registers.
struct Consumer {
    const BackwardParameters& p;
    const Shared shared;
    const u32 warpgroup, warp;  ///< the latter in its warpgroup

    Ring<kStages> query_ring, grad_out_ring;  ///< the next block to multiply
    Ring<kStages> block_ring;                 ///< the block whose scores are in registers
    u32 tile_parity = 0, grad_parity = 1;
    Ring<2> score_ring{0, 1};  ///< where dS of the block in registers goes
    Ring<2> ready_ring;        ///< dS whose dQ is not multiplied yet

    int first_key;          ///< of this warpgroup
    int block, begin, end;  ///< blocks of query rows: the one in registers, the range of the tile
    float scores[kScores], grad_scores[kScores];
    float grad_key[kQueryDim / 2], grad_value[kValueDim / 2], grad_query[kGradColumns / 2];
    u32 packed_p[kPacked], packed_grad[kPacked];

    // NOTE: what derives from the lane is computed where it is used, from a lane read anew: kept,
    // it would take registers that the accumulators need.
    /// First of this thread's two keys; the other is 8 further.
    TW_DEVICE int key() const { return first_key + warp * 16 + ptx::lane_index() / 4; }

    /// One arrival per warp: each waits for its own part of the wgmma.
    TW_DEVICE void release(u32 barrier) const {
        if (ptx::elect_lane()) ptx::mbarrier_arrive(barrier);
    }

    // ---- turns. One warpgroup at a time issues the matrix products of a step, the others compute
    // scores meanwhile; left alone, all would compute at once and then wait for the tensor cores at
    // once.
    TW_DEVICE void take_turn() const {
        if constexpr (kWarpgroups > 1) ptx::named_barrier_sync(1 + warpgroup, 256);
    }
    TW_DEVICE void pass_turn() const {
        if constexpr (kWarpgroups > 1) {
            ptx::named_barrier_arrive(1 + (warpgroup + 1) % kWarpgroups, 256);
        }
    }

    // ---- matrix products; all are in flight afterwards
    /// d = A B^T over kDim columns: rows of this warpgroup of a tile (K, V) times a block (Q, dO).
    template <int kDim>
    TW_DEVICE void issue_transposed(float (&d)[kScores], u32 tile, u32 rows) {
        const u64 a = ptx::wgmma_descriptor_swizzle128(tile + warpgroup * 64 * 128, 16, 1024);
        const u64 b = ptx::wgmma_descriptor_swizzle128(rows, 16, 1024);
        ptx::wgmma_tie(d);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < steps(kDim); ++step) {  // 16 columns each, four in a panel
            const u32 inside = step % 4 * 32;
            const u64 ak = a + ptx::wgmma_descriptor_step(step / 4 * kTilePanelBytes + inside);
            const u64 bk = b + ptx::wgmma_descriptor_step(step / 4 * kBlockPanelBytes + inside);
            if (step == 0) {
                ptx::wgmma<0, 0>(Element{}, d, ak, bk);
            } else {
                ptx::wgmma<1, 0>(Element{}, d, ak, bk);
            }
        }
        ptx::wgmma_commit();
    }

    /// S^T = K Q^T of the next block.
    TW_DEVICE void issue_scores() {
        ptx::mbarrier_wait(shared.query_full(query_ring.index), query_ring.parity);
        issue_transposed<kQueryDim>(scores, shared.key(), shared.query(query_ring.index));
        query_ring.advance();
    }

    /// dP^T = V dO^T of the next block.
    TW_DEVICE void issue_grad_scores() {
        ptx::mbarrier_wait(shared.grad_out_full(grad_out_ring.index), grad_out_ring.parity);
        issue_transposed<kValueDim>(grad_scores, shared.value(),
                                    shared.grad_out(grad_out_ring.index));
        grad_out_ring.advance();
    }

    /// d += A B, A (keys x queries) in registers, B the rows of a block.
    template <int kCount>
    TW_DEVICE void multiply_block(float (&d)[kCount], const u32 (&a)[kPacked], u32 rows) {
        const u64 b = ptx::wgmma_descriptor_swizzle128(rows, kBlockPanelBytes, 1024);
#pragma unroll
        for (int step = 0; step < kBlockM / 16; ++step) {  // 16 queries each
            ptx::wgmma<1, 1>(Element{}, d, a + 4 * step,
                             b + ptx::wgmma_descriptor_step(step * 16 * 128));
        }
    }

    /// dV += P^T dO and dK += dS^T Q of the block in registers.
    TW_DEVICE void issue_sums() {
        ptx::wgmma_tie(packed_p);
        ptx::wgmma_tie(packed_grad);
        ptx::wgmma_tie(grad_value);
        ptx::wgmma_tie(grad_key);
        ptx::wgmma_fence();
        multiply_block(grad_value, packed_p, shared.grad_out(block_ring.index));
        multiply_block(grad_key, packed_grad, shared.query(block_ring.index));
        ptx::wgmma_commit();
    }

    /// This warpgroup's part of dQ = dS K, once all warpgroups stored their part of dS: 64 rows of
    /// it, or 64 columns as rows of dQ^T = K^T dS^T.
    TW_DEVICE void issue_grad_query() {
        ptx::mbarrier_wait(shared.score_full(ready_ring.index), ready_ring.parity);
        const u32 rows = shared.score(ready_ring.index) + (kGradTransposed ? 0 : warpgroup * 8192);
        const u32 tile = shared.key() + (kGradTransposed ? warpgroup * kTilePanelBytes : 0);
        const u64 scores_at = ptx::wgmma_descriptor_swizzle128(rows, 16, 1024);
        const u64 keys_at = ptx::wgmma_descriptor_swizzle128(tile, kTilePanelBytes, 1024);
        ptx::wgmma_tie(grad_query);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kBlockN / 16; ++step) {  // 16 keys each
            const u64 s =
                scores_at + ptx::wgmma_descriptor_step(step / 4 * kBlockPanelBytes + step % 4 * 32);
            const u64 k = keys_at + ptx::wgmma_descriptor_step(step * 16 * 128);
            if constexpr (kGradTransposed) {
                if (step == 0) {
                    ptx::wgmma<0, 0, 1>(Element{}, grad_query, k, s);
                } else {
                    ptx::wgmma<1, 0, 1>(Element{}, grad_query, k, s);
                }
            } else {
                if (step == 0) {
                    ptx::wgmma<0, 1>(Element{}, grad_query, s, k);
                } else {
                    ptx::wgmma<1, 1>(Element{}, grad_query, s, k);
                }
            }
        }
        ptx::wgmma_commit();
    }

    /// dV and dK of the block in registers are done: its Q and dO may be overwritten.
    TW_DEVICE void release_block() {
        ptx::wgmma_tie(packed_p);
        ptx::wgmma_tie(packed_grad);
        release(shared.query_empty(block_ring.index));
        release(shared.grad_out_empty(block_ring.index));
        block_ring.advance();
    }

    // ---- scores
    /// scores = P^T = exp2(scale * S^T - lse), 0 where masked.
    template <bool kMasked>
    TW_DEVICE void compute_p(int stage) {
        const u32 quad_lane = ptx::lane_index() % 4;
        const u32 lse = shared.lse(stage) + quad_lane * 8;
        int first[2] = {0, 0}, last[2] = {0, 0};
        if constexpr (kMasked) {
            const int row = block * kBlockM + quad_lane * 2;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int k = key() + 8 * r;
                first[r] = kUpperBound ? k - p.upper_diagonal - row : 0;
                last[r] = kLowerBound ? k - p.lower_diagonal - row : kBlockM;
                if (k >= p.kv_len) last[r] = -1;
            }
        }
#pragma unroll
        for (int i = 0; i < kScores; i += 4) {  // 8 query rows, two of them this thread's
            const float2 l = ptx::load_shared_f32x2(lse + i * 8);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float& x = scores[i + e];
                x = ptx::exp2_approx(x * p.scale_log2 - (e % 2 == 0 ? l.x : l.y));
                if constexpr (kMasked) {
                    const int offset = 2 * i + e % 2, r = e / 2;
                    if ((kUpperBound && offset < first[r]) || offset > last[r]) x = 0;
                }
            }
        }
    }

    /// grad_scores = dS^T = P^T (dP^T - delta), without the softmax scale.
    TW_DEVICE void compute_grad_scores(int stage) {
        const u32 delta = shared.delta(stage) + ptx::lane_index() % 4 * 8;
#pragma unroll
        for (int i = 0; i < kScores; i += 4) {
            const float2 d = ptx::load_shared_f32x2(delta + i * 8);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float& x = grad_scores[i + e];
                x = scores[i + e] * (x - (e % 2 == 0 ? d.x : d.y));
            }
        }
    }

    /// P^T and dS^T as operands: blocks 2 k and 2 k + 1 of 8 queries are step k, no data moves
    /// between lanes. dS goes to shared memory too, by rows of queries, for dQ.
    TW_DEVICE void pack_scores() {
#pragma unroll
        for (int i = 0; i < kPacked; ++i) {
            packed_grad[i] = ptx::pack(Element{}, grad_scores[2 * i], grad_scores[2 * i + 1]);
            packed_p[i] = ptx::pack(Element{}, scores[2 * i], scores[2 * i + 1]);
        }
        ptx::mbarrier_wait(shared.score_empty(score_ring.index), score_ring.parity);
        // Lane 8 i + r stores row r of the i-th 8 x 8 matrix: keys in swizzled chunks of 16 bytes.
        const u32 lane = ptx::lane_index(), row = lane / 16 * 8 + lane % 8;
        const u32 chunk = warp * 2 + lane / 8 % 2;
        const u32 target = shared.score(score_ring.index) + warpgroup * kBlockPanelBytes +
                           row * 128 + ((chunk ^ lane % 8) << 4);
#pragma unroll
        for (int i = 0; i < kPacked; i += 4) {
            ptx::stmatrix_transposed(target + i / 4 * 2048,
                                     *reinterpret_cast<const u32(*)[4]>(packed_grad + i));
        }
        ptx::fence_async_shared();
        __syncwarp();
        release(shared.score_full(score_ring.index));
        score_ring.advance();
    }

    /// Hands dQ, which has been multiplied, to the writer, in the order of the registers.
    TW_DEVICE void store_grad_query() {
        ptx::wgmma_tie(grad_query);
        release(shared.score_empty(ready_ring.index));
        ready_ring.advance();
        ptx::mbarrier_wait(shared.grad_empty(warpgroup), grad_parity);
        grad_parity ^= 1;
        const u32 target = shared.grad(warpgroup) + (warp * 32 + ptx::lane_index()) * 16;
#pragma unroll
        for (int i = 0; i < kGradColumns / 2; i += 4) {
            ptx::store_shared_128(
                target + i / 4 * 2048,
                make_uint4(__float_as_uint(grad_query[i]), __float_as_uint(grad_query[i + 1]),
                           __float_as_uint(grad_query[i + 2]), __float_as_uint(grad_query[i + 3])));
        }
        ptx::fence_async_shared();
        __syncwarp();
        release(shared.grad_full(warpgroup));
    }

    // ---- blocks
    /// The block after the one in registers, in the order of block_at; of the next query head of
    /// the group at the end.
    TW_DEVICE int following() const {
        if constexpr (kDeterministic) return block == begin ? end - 1 : block - 1;
        return block + 1 == end ? begin : block + 1;
    }

    /// Whether some pair of this warpgroup's keys and the rows of a block is masked.
    TW_DEVICE bool is_masked(int of_block) const {
        const int row = of_block * kBlockM;
        return first_key + 64 > p.kv_len ||
               (kUpperBound && row + p.upper_diagonal < first_key + 63) ||
               (kLowerBound && row + kBlockM - 1 + p.lower_diagonal > first_key);
    }

    /// From the scores of one block to those of the next: the sums of the one beside the products
    /// of the other. dQ runs a block late, so that no warpgroup waits for another's dS. Nothing is
    /// in flight before and after.
    template <bool kMasked, bool kFirst>
    TW_DEVICE void step() {
        pack_scores();
        take_turn();
        // Every wait leaves the next product in flight.
        if constexpr (kFirst) {
            issue_sums();
            issue_scores();
            ptx::wgmma_wait<1>();
            release_block();
        } else {
            issue_grad_query();
            issue_sums();
            ptx::wgmma_wait<1>();
            store_grad_query();
            issue_scores();
            ptx::wgmma_wait<1>();
            release_block();
        }
        issue_grad_scores();
        pass_turn();
        block = following();
        compute_scores<kMasked>();
    }

    /// P and dS of the block whose two products are in flight.
    template <bool kMasked>
    TW_DEVICE void compute_scores() {
        ptx::wgmma_wait<1>();
        ptx::wgmma_tie(scores);
        compute_p<kMasked>(block_ring.index);
        // NOTE: passed long ago. It ends a basic block, or else ptxas waits for dP before most of
        // the exponentials.
        ptx::wgmma_tie(scores);
        ptx::mbarrier_wait(shared.grad_out_full(block_ring.index), block_ring.parity);
        ptx::wgmma_wait<0>();
        ptx::wgmma_tie(grad_scores);
        compute_grad_scores(block_ring.index);
    }

    /// All blocks of a tile, over all query heads of the group.
    TW_DEVICE void all_blocks() {
        issue_scores();
        ptx::mbarrier_wait(shared.value_full(), tile_parity);
        issue_grad_scores();
        compute_scores<true>();
        const int count = (end - begin) * p.heads_per_kv_head;
        if (count > 1) step<true, true>();
        for (int i = 2; i < count; ++i) {
            if (is_masked(following())) {
                step<true, false>();
            } else {
                step<false, false>();
            }
        }
        pack_scores();
        if (count > 1) {
            issue_grad_query();
            ptx::wgmma_wait<0>();
            store_grad_query();
        }
        issue_sums();
        issue_grad_query();
        ptx::wgmma_wait<1>();
        release_block();
        ptx::wgmma_wait<0>();
        ptx::wgmma_tie(grad_value);
        ptx::wgmma_tie(grad_key);
        release(shared.tile_empty());
        store_grad_query();
    }

    template <int kColumns, int kCount>
    TW_DEVICE void store(const float (&sums)[kCount], const Rows& rows, float factor, int batch,
                         int head) const {
        const float factors[2] = {factor, factor};
        const int row = key();
        u16* const target = static_cast<u16*>(rows.data) + batch * rows.batch_stride +
                            head * rows.head_stride + row * rows.row_stride;
        store_rows<kColumns>(Element{}, sums, factors, target, rows.row_stride, p.kv_len - row);
    }

    TW_DEVICE void run() {
        if (warpgroup == kWarpgroups - 1) pass_turn();
        while (true) {
            ptx::mbarrier_wait(shared.key_full(), tile_parity);
            const uint4 words = ptx::load_shared_128(shared.tile());
            const int tile = words.x;
            if (tile < 0) return;
            first_key = tile * kBlockN + warpgroup * 64;
            begin = words.z;
            end = begin + words.w;
            block = block_at(0, begin, words.w);
#pragma unroll
            for (int i = 0; i < kQueryDim / 2; ++i) grad_key[i] = 0;
#pragma unroll
            for (int i = 0; i < kValueDim / 2; ++i) grad_value[i] = 0;
            if (begin < end) {
                all_blocks();
            } else {
                ptx::mbarrier_wait(shared.value_full(), tile_parity);
                release(shared.tile_empty());
            }
            tile_parity ^= 1;
            const int batch = words.y / p.kv_heads, head = words.y - batch * p.kv_heads;
            store<kQueryDim>(grad_key, p.grad_key, p.scale, batch, head);
            store<kValueDim>(grad_value, p.grad_value, 1.0f, batch, head);
        }
    }
};

}  // namespace tw::attn
