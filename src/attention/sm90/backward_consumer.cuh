// A consumer warpgroup of the backward kernel: 64 keys, whose dK and dV stay in registers.
#pragma once

#include "attention/sm90/backward_products.cuh"

namespace twd::attn {

struct Consumer : Products {
    const u32 warpgroup = strip;

    u32 grad_parity = 1, sums_parity = 0;
    Ring<2> score_ring{0, 1};  ///< where dS of the block in registers goes
    Ring<2> ready_ring;        ///< dS that is not yet multiplied into dQ

    TW_ALIGNED float scores[kScores];
    TW_ALIGNED float grad_scores[kScores];
    TW_ALIGNED float grad_key[kQueryDim / 2];
    TW_ALIGNED float grad_value[kValueDim / 2];
    TW_ALIGNED float grad_query[kGradColumns / 2];
    TW_ALIGNED u32 packed_p[kPackedScores];
    TW_ALIGNED u32 packed_grad[kPackedScores];

    // ---- Ping-pong: one warpgroup at a time issues the matrix products of a step while the others
    // compute scores; unsynchronised, all would compute at once and then wait for the tensor cores
    // at once.
    TW_DEVICE void acquire_tensor_cores() const {
        if constexpr (kWarpgroups > 1) ptx::named_barrier_sync(1 + warpgroup, 256);
    }
    TW_DEVICE void release_tensor_cores() const {
        if constexpr (kWarpgroups > 1) {
            ptx::named_barrier_arrive(1 + (warpgroup + 1) % kWarpgroups, 256);
        }
    }

    /// dV += P^T dO and dK += dS^T Q of the block in registers.
    TW_DEVICE_ONCE void issue_sums() {
        ptx::wgmma_tie(packed_p);
        ptx::wgmma_tie(packed_grad);
        ptx::wgmma_tie(grad_value);
        ptx::wgmma_tie(grad_key);
        ptx::wgmma_fence();
        multiply_block(grad_value, packed_p, shared.grad_out(block_ring.index));
        multiply_block(grad_key, packed_grad, shared.query(block_ring.index));
        ptx::wgmma_commit();
    }

    /// This warpgroup's part of dQ, once all warpgroups have stored their part of dS.
    template <bool kAdd = false>
    TW_DEVICE_ONCE void issue_grad_query() {
        ptx::mbarrier_wait(shared.score_full(ready_ring.index), ready_ring.parity);
        Products::issue_grad_query<kAdd>(grad_query, ready_ring.index, warpgroup);
    }

    /// dV and dK of the block in registers are done, so its Q and dO may be overwritten.
    TW_DEVICE_ONCE void release_block() {
        ptx::wgmma_tie(packed_p);
        ptx::wgmma_tie(packed_grad);
        release(shared.query_empty(block_ring.index));
        release(shared.grad_out_empty(block_ring.index));
        block_ring.advance();
    }

    /// P^T and dS^T as operands: blocks 2 k and 2 k + 1 of 8 queries are step k, and no data moves
    /// between lanes. dS also goes to shared memory.
    TW_DEVICE_ONCE void pack_scores() {
        TW_UNROLL
        for (int i = 0; i < kPackedScores; ++i) {
            packed_grad[i] = ptx::pack(Element{}, grad_scores[2 * i], grad_scores[2 * i + 1]);
            packed_p[i] = ptx::pack(Element{}, scores[2 * i], scores[2 * i + 1]);
        }
        ptx::mbarrier_wait(shared.score_empty(score_ring.index), score_ring.parity);
        store_scores(packed_grad, shared.score(score_ring.index),
                     shared.score_full(score_ring.index));
        score_ring.advance();
    }

    /// Hands the finished product dQ to the writer, in the order of the registers.
    TW_DEVICE_ONCE void store_grad_query() {
        ptx::wgmma_tie(grad_query);
        release(shared.score_empty(ready_ring.index));
        ready_ring.advance();
        ptx::mbarrier_wait(shared.grad_empty(warpgroup), grad_parity);
        grad_parity ^= 1;
        const u32 target = shared.grad(warpgroup) + warp * kGradWarpBytes + ptx::lane_index() * 16;
        TW_UNROLL
        for (int i = 0; i < kGradColumns / 2; i += 4) {
            ptx::store_shared_128(
                target + i / 4 * kGradQuadBytes,
                make_uint4(__float_as_uint(grad_query[i]), __float_as_uint(grad_query[i + 1]),
                           __float_as_uint(grad_query[i + 2]), __float_as_uint(grad_query[i + 3])));
        }
        ptx::fence_async_shared();
        __syncwarp();
        release(shared.grad_full(warpgroup));
    }

    /// No further tile adds to a block of dQ: its product is to be added to what the tiles before
    /// did. Adding after the product would take registers.
    TW_DEVICE_ONCE void load_sums(int of_block) {
        ptx::mbarrier_wait(shared.grad_empty(warpgroup), grad_parity);
        grad_parity ^= 1;
        const bool exist = kUpward ? predecessor_of(tile_word(0), of_block, descends(), p) != 0
                                   : first_key >= kBlockN;
        if (exist && grad_bytes(warpgroup) > 0) {
            ptx::mbarrier_wait(shared.sums_full(warpgroup), sums_parity);
            sums_parity ^= 1;
            const u32 source =
                shared.grad(warpgroup) + warp * kGradWarpBytes + ptx::lane_index() * 16;
            TW_UNROLL
            for (int i = 0; i < kGradColumns / 2; i += 4) {
                const uint4 sums = ptx::load_shared_128(source + i / 4 * kGradQuadBytes);
                grad_query[i] = __uint_as_float(sums.x);
                grad_query[i + 1] = __uint_as_float(sums.y);
                grad_query[i + 2] = __uint_as_float(sums.z);
                grad_query[i + 3] = __uint_as_float(sums.w);
            }
        } else {
            clear_grad_query();
        }
        ptx::fence_async_shared();  // the writer may overwrite what was read
        __syncwarp();
        release(shared.grad_full(warpgroup));
    }
    TW_DEVICE void clear_grad_query() {
        TW_UNROLL
        for (int i = 0; i < kGradColumns / 2; ++i) grad_query[i] = 0;
    }

    /// Stores the finished rows of dQ of a block. `head` counts in the group.
    TW_DEVICE_ONCE void finish_grad_query(int of_block, int head, const KeyRows& tile_rows) {
        ptx::wgmma_tie(grad_query);
        release(shared.score_empty(ready_ring.index));
        ready_ring.advance();
        store_rows_of_query(of_block, tile_rows.head * group_heads() + head, tile_rows.batch);
    }
    /// The same for the tile's `visit`-th visit.
    TW_DEVICE_ONCE void finish_visit(int visit, const KeyRows& tile_rows) {
        const int place = visit / group_heads();
        finish_grad_query(block_of(visit), visit - place * group_heads(), tile_rows);
    }
    TW_DEVICE int block_of(int visit) const {
        return block_at(visit / group_heads(), tile_word(4), tile_word(5), descends());
    }
    TW_DEVICE int group_heads() const { return kFinishesMany ? p.heads_per_kv_head : 1; }

    TW_DEVICE_ONCE void store_rows_of_query(int of_block, int of_head, int of_batch) const {
        u16* const rows = static_cast<u16*>(p.grad_query.data) +
                          of_batch * p.grad_query.batch_stride + of_head * p.grad_query.head_stride;
        const u32 lane = ptx::lane_index();
        if constexpr (!kGradTransposed) {
            const float factors[2] = {p.scale, p.scale};
            const int row = of_block * kBlockM + 64 * warpgroup + 16 * warp + lane / 4;
            attn::store_rows<kQueryDim>(Element{}, grad_query, factors,
                                        rows + row * p.grad_query.row_stride,
                                        8 * p.grad_query.row_stride, p.q_len - row);
            return;
        }
        // A warp has 16 columns of dQ by 8 queries: transposed, and with two lanes exchanging
        // words, each lane has four columns of a query.
        const bool odd = lane & 1;
        const int first_row = of_block * kBlockM + lane / 4;
        const int column = 64 * warpgroup + 16 * warp + (odd ? 8 : 0) + lane % 4 / 2 * 4;
        u16* target = rows + first_row * p.grad_query.row_stride + column;
        TW_UNROLL
        for (int j = 0; j < kGradColumns / 8; ++j) {
            const float* const sums = grad_query + 4 * j;
            const u32 low =
                ptx::transpose_matrix(ptx::pack(Element{}, sums[0] * p.scale, sums[1] * p.scale));
            const u32 high =
                ptx::transpose_matrix(ptx::pack(Element{}, sums[2] * p.scale, sums[3] * p.scale));
            const u32 other = __shfl_xor_sync(~0u, odd ? low : high, 1);
            if (first_row + 8 * j < p.q_len && column < kQueryDim) {
                *reinterpret_cast<uint2*>(target) =
                    odd ? make_uint2(other, high) : make_uint2(low, other);
            }
            target += 8 * p.grad_query.row_stride;
        }
    }

    // ---- blocks
    /// Are rows of dQ stored while the next products run? With more rows this would spill.
    static constexpr bool kOverlaps = kUpward && kBlockM == 64;
    /// What becomes of dQ of the block before the one in registers.
    enum class LastQuery {
        kNone,      ///< there is none
        kAddsUp,    ///< it is added to the sums
        kIsStored,  ///< this tile finishes it, in a visit given to `step`
    };
    /// From the scores of one block to those of the next: the sums of one block overlap with the
    /// products of the other. dQ lags by one block, so that no warpgroup waits for another's dS.
    /// Nothing is in flight before and after.
    template <bool kMasked, LastQuery kLastQuery>
    TW_DEVICE_ONCE void step(int last_visit = 0, const KeyRows& tile_rows = {}) {
        const bool adds_up =
            kLastQuery == LastQuery::kAddsUp && (!TW_IS_COMPACT || last_visit >= 0);
        pack_scores();
        acquire_tensor_cores();
        if constexpr (kLastQuery == LastQuery::kIsStored) {
            load_sums(block_of(last_visit));
            issue_grad_query<true>();
            if constexpr (!kOverlaps) {
                ptx::wgmma_wait<0>();
                finish_visit(last_visit, tile_rows);
            }
        }
        // Every wait leaves the next product in flight.
        if (adds_up) issue_grad_query();
        issue_sums();
        if (adds_up) {
            ptx::wgmma_wait<1>();
            store_grad_query();
        }
        if constexpr (kLastQuery == LastQuery::kIsStored && kOverlaps) {
            ptx::wgmma_wait<1>();
            finish_visit(last_visit, tile_rows);
        }
        issue_scores(scores);
        ptx::wgmma_wait<1>();
        release_block();
        issue_grad_scores(grad_scores);
        release_tensor_cores();
        if constexpr (!kDescribed) follow();
        compute_scores<kMasked>(scores, grad_scores, [] {});
    }

    /// All blocks of a tile, over all query heads of the group.
    TW_DEVICE void all_blocks(int count, const KeyRows& tile_rows) {
        if constexpr (!kAhead) {
            clear_hidden_keys(true, true, tile_ring.parity, 3 + warpgroup);
            clear_next_past_end(3 + warpgroup);
            issue_scores(scores);
            ptx::mbarrier_wait(shared.value_full(), tile_ring.parity);
            issue_grad_scores(grad_scores);
        }
        compute_scores<true>(scores, grad_scores, [] {});
        if (count > 1) {
            if (next_is_ragged()) clear_next_past_end(3 + warpgroup);
            step<true, TW_IS_COMPACT ? LastQuery::kAddsUp : LastQuery::kNone>(/*last_visit=*/-1);
        }
        int stored = 0;  // the tile's last visits, whose dQ it finishes
        if constexpr (kFused) {
            stored = finished_blocks(tile_word(0), tile_word(4), tile_word(5), descends(), p) *
                     group_heads();
        }
        int i = 2;
        TW_LOOP
        for (const int end = kFinishesMany ? count - max(0, stored - 2) : count; i < end; ++i) {
            if (next_is_ragged()) clear_next_past_end(3 + warpgroup);
            if (TW_IS_COMPACT || next_is_masked()) {
                step<true, LastQuery::kAddsUp>();
            } else {
                step<false, LastQuery::kAddsUp>();
            }
        }
        if constexpr (kFinishesMany) {
            TW_LOOP
            for (; i < count; ++i) {
                if (TW_IS_COMPACT || !kUpward || next_is_masked()) {
                    step<true, LastQuery::kIsStored>(i - 2, tile_rows);
                } else {
                    step<false, LastQuery::kIsStored>(i - 2, tile_rows);
                }
            }
        }
        pack_scores();
        if constexpr (kAhead) release(shared.value_empty());
        if (count > 1) {
            if (kFused && stored > 1) {
                load_sums(block_of(count - 2));
                issue_grad_query<true>();
                ptx::wgmma_wait<0>();
                finish_visit(count - 2, tile_rows);
            } else {
                issue_grad_query();
                ptx::wgmma_wait<0>();
                store_grad_query();
            }
        }
        const bool finishes = kFused && ((kUpperBound && !kUpward) || stored > 0);
        if (finishes) {
            load_sums(block);
        } else if constexpr (kFused) {
            clear_grad_query();
        }
        issue_sums();
        issue_grad_query<kFused>();
        ptx::wgmma_wait<1>();
        release_block();
        ptx::wgmma_wait<0>();
        ptx::wgmma_tie(grad_value);
        ptx::wgmma_tie(grad_key);
        release(shared.tile_empty(tile_ring.index));
        if (finishes) {
            finish_grad_query(block, group_heads() - 1, tile_rows);
        } else {
            store_grad_query();
        }
    }

    // ---- the next tile's first products ahead of this one's results
    u32 value_parity = 0;  ///< of V's next arrival

    /// S^T and dP^T of a tile's first block, in flight together. NOTE: no branch may come between a
    /// wgmma and its wait (C7514), so after the last tile they use whatever is there.
    TW_DEVICE_ONCE void issue_first_block(bool exists) {
        if (exists) ptx::mbarrier_wait(shared.query_full(query_ring.index), query_ring.parity);
        multiply_query(scores);
        if (exists) {
            ptx::mbarrier_wait(shared.value_full(), value_parity);
            ptx::mbarrier_wait(shared.grad_out_full(grad_out_ring.index), grad_out_ring.parity);
        }
        value_parity ^= 1;
        multiply_grad_out(grad_scores);
    }

    TW_DEVICE_ONCE void store_tile(const KeyRows& rows) {
        store<kQueryDim>(grad_key, p.grad_key, p.key_splits, p.scale, rows);
        store<kValueDim>(grad_value, p.grad_value, p.value_splits, kDropout ? p.keep_scale : 1.0f,
                         rows);
    }
    TW_DEVICE void clear_tile() {
        TW_UNROLL
        for (int i = 0; i < kQueryDim / 2; ++i) grad_key[i] = 0;
        TW_UNROLL
        for (int i = 0; i < kValueDim / 2; ++i) grad_value[i] = 0;
    }

    /// dK and dV of a tile are packed before the next tile's first products are issued, and stored
    /// while these run. NOTE: read as accumulators, past the loop's end, they would be waited for.
    TW_DEVICE void run_ahead() {
        KeyRows done{};  // no rows
        u32 keys[kQueryDim / 4] = {}, values[kValueDim / 4] = {};
        first_key = 0;
        while (true) {
            ptx::mbarrier_wait(shared.key_full(tile_ring.index), tile_ring.parity);
            const uint4 words = ptx::load_shared_128(shared.tile(tile_ring.index));
            const int tile = words.x, count = words.w;
            issue_first_block(tile >= 0);
            store_packed<kQueryDim>(keys, p.grad_key, key(), done);
            store_packed<kValueDim>(values, p.grad_value, key(), done);
            ptx::wgmma_wait<0>();
            ptx::wgmma_tie(scores);
            ptx::wgmma_tie(grad_scores);
            if (tile < 0) return;
            enter_tile(tile);
            done = rows_of_tile();
            clear_tile();
            all_blocks(count, done);
            tile_ring.advance();
            if (p.splits > 1) {
                store_tile(done);
                done.len = 0;
            }
            pack_rows(Element{}, grad_key, p.scale, keys);
            pack_rows(Element{}, grad_value, kDropout ? p.keep_scale : 1.0f, values);
        }
    }

    TW_DEVICE void run() {
        if (warpgroup == kWarpgroups - 1) release_tensor_cores();
        if constexpr (kAhead) {
            run_ahead();
            return;
        }
        while (true) {
            ptx::mbarrier_wait(shared.key_full(), tile_ring.parity);
            const uint4 words = ptx::load_shared_128(shared.tile());
            const int tile = words.x, count = words.w;
            if (tile < 0) return;
            enter_tile(tile);
            const KeyRows rows = rows_of_tile();
            clear_tile();
            if (count > 0) {
                all_blocks(count, rows);
            } else {
                ptx::mbarrier_wait(shared.value_full(), tile_ring.parity);
                release(shared.tile_empty());
            }
            tile_ring.advance();
            store_tile(rows);
        }
    }
};

}  // namespace twd::attn
