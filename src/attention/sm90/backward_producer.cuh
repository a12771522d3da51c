// The threads of the backward kernel that move data: the producer keeps the copy engine busy, the
// writers add dQ to its sums.
#pragma once

#include "attention/sm90/backward_layout.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/sync.cuh"
#include "cuda/device/ptx/tma.cuh"

namespace tw::attn {

struct Producer {
    const TensorMap *query_map, *key_map, *value_map, *grad_out_map;
    const BackwardParameters& p;
    Shared shared;
    u64 keep, once;  ///< L2 policies: Q and dO are read by many tiles, K and V by one

    u32 tile_parity = 1;  // parity 1: waits for "empty" pass in the first round
    Ring<kStages> query_ring{0, 1}, grad_out_ring{0, 1};

    TW_DEVICE void load(u32 target, const TensorMap* map, u32 barrier, u64 policy, int dim,
                        u32 panel_bytes, int row, int head, int batch) {
        for (int panel = 0; panel < panels(dim); ++panel) {
            ptx::tensor_load(target + panel * panel_bytes, map, barrier, policy, panel * kPanel,
                             row, head, batch);
        }
    }

    /// Describes a tile and loads its K and V, once all readers left the tile before it.
    TW_DEVICE void open(const KeyTile& tile) {
        ptx::mbarrier_wait(shared.tile_empty(), tile_parity);
        tile_parity ^= 1;
        ptx::store_shared_128(shared.tile(),
                              make_uint4(tile.index, tile.batch_kv_head, tile.begin, tile.blocks));
        if (tile.index < 0) {
            ptx::mbarrier_arrive(shared.key_full());
            return;
        }
        const int batch = tile.batch_kv_head / p.kv_heads;
        const int head = tile.batch_kv_head - batch * p.kv_heads;
        ptx::mbarrier_arrive_expect(shared.key_full(), kKeyBytes);  // publishes the words too
        load(shared.key(), key_map, shared.key_full(), once, kQueryDim, kTilePanelBytes,
             tile.index * kBlockN, head, batch);
        ptx::mbarrier_arrive_expect(shared.value_full(), kValueBytes);
        load(shared.value(), value_map, shared.value_full(), once, kValueDim, kTilePanelBytes,
             tile.index * kBlockN, head, batch);
    }

    TW_DEVICE void load_block(int block, int head_row, int head, int batch) {
        const i64 stats = static_cast<i64>(head_row) * p.q_blocks * kBlockM + block * kBlockM;
        u32 full = shared.query_full(query_ring.index);
        ptx::mbarrier_wait(shared.query_empty(query_ring.index), query_ring.parity);
        ptx::mbarrier_arrive_expect(full, kQueryBytes + kStatBytes);
        load(shared.query(query_ring.index), query_map, full, keep, kQueryDim, kBlockPanelBytes,
             block * kBlockM, head, batch);
        ptx::bulk_load(shared.lse(query_ring.index), p.row_lse + stats, kStatBytes, full);
        query_ring.advance();

        full = shared.grad_out_full(grad_out_ring.index);
        ptx::mbarrier_wait(shared.grad_out_empty(grad_out_ring.index), grad_out_ring.parity);
        ptx::mbarrier_arrive_expect(full, kGradOutBytes + kStatBytes);
        load(shared.grad_out(grad_out_ring.index), grad_out_map, full, keep, kValueDim,
             kBlockPanelBytes, block * kBlockM, head, batch);
        ptx::bulk_load(shared.delta(grad_out_ring.index), p.row_delta + stats, kStatBytes, full);
        grad_out_ring.advance();
    }

    /// The place after `place` that this CTA works on.
    TW_DEVICE int next_place(int place) const {
        if (p.tickets != nullptr) return gridDim.x + ptx::fetch_add(p.tickets, 1);
        return place + gridDim.x;
    }

    TW_DEVICE void run() {
        const int places = p.kv_tiles * p.batch_kv_heads;
        int place = blockIdx.x;
        while (place < places) {
            const KeyTile tile = tile_at(place, p);
            open(tile);
            for (int group = 0; group < p.heads_per_kv_head; ++group) {
                const int head_row = query_head_row(tile.batch_kv_head, group, p);
                const int batch = head_row / p.heads, head = head_row - batch * p.heads;
                for (int i = 0; i < tile.blocks; ++i) {
                    load_block(block_at(i, tile.begin, tile.blocks), head_row, head, batch);
                }
            }
            place = next_place(place);
        }
        open({-1, 0, 0, 0});
    }
};

/// One thread per warpgroup: adds the dQ that its warpgroup left in shared memory.
struct Writer {
    const BackwardParameters& p;
    const Shared shared;
    const u32 warpgroup;

    TW_DEVICE void run() {
        u32 tile_parity = 0, parity = 0;
        while (true) {
            ptx::mbarrier_wait(shared.key_full(), tile_parity);
            tile_parity ^= 1;
            const uint4 words = ptx::load_shared_128(shared.tile());
            ptx::mbarrier_arrive(shared.tile_empty());
            if (static_cast<int>(words.x) < 0) return;
            const int begin = words.z, blocks = words.w;
            for (int group = 0; group < p.heads_per_kv_head; ++group) {
                const i64 first = static_cast<i64>(query_head_row(words.y, group, p)) * p.q_blocks;
                for (int i = 0; i < blocks; ++i) {
                    const int block = block_at(i, begin, blocks);
                    const i64 chunk = (first + block) * kWarpgroups + warpgroup;
                    ptx::mbarrier_wait(shared.grad_full(warpgroup), parity);
                    parity ^= 1;
                    if constexpr (kDeterministic) {
                        const u32 turn = turn_of(words.x, block, p);
                        while (ptx::load_acquire(p.turns + chunk) != turn) {
                        }
                    }
                    ptx::bulk_add_f32(p.grad_query_sums + chunk * (kGradBytes / 4),
                                      shared.grad(warpgroup), kGradBytes);
                    ptx::bulk_commit();
                    ptx::bulk_wait_read<0>();
                    ptx::mbarrier_arrive(shared.grad_empty(warpgroup));
                    if constexpr (kDeterministic) {
                        ptx::bulk_wait<0>();
                        ptx::fence_device();
                        ptx::fetch_add(p.turns + chunk, 1);
                    }
                }
            }
        }
    }
};

}  // namespace tw::attn
