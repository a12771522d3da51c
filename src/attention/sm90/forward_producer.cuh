// The producer of the forward kernel: one thread that keeps the copy engine busy.
#pragma once

#include "attention/sm90/forward_layout.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/tma.cuh"

namespace tw::attn {

struct Producer {
    const TensorMap *query_map, *key_map, *value_map;
    const ForwardParameters& p;
    Shared shared;
    u64 keep, once;  ///< L2 policies: K and V are read by many tiles, Q by one

    Ring<kQueryBuffers> query_ring{0, 1};  // parity 1: waits for "empty" pass in the first round
    Ring<kStages> key_ring{0, 1};
    Ring<kStages> value_ring{0, 1};

    TW_DEVICE void load(u32 target, const TensorMap* map, u32 barrier, u64 policy, int dim,
                        u32 panel_bytes, int row, int head, int batch) {
        for (int panel = 0; panel < panels(dim); ++panel) {
            ptx::tensor_load(target + panel * panel_bytes, map, barrier, policy, panel * kPanel,
                             row, head, batch);
        }
    }

    /// Describes a tile and loads its query rows, once the consumers left the buffer.
    TW_DEVICE void open(const Tile& tile) {
        const u32 full = shared.query_full(query_ring.index);
        ptx::mbarrier_wait(shared.query_empty(query_ring.index), query_ring.parity);
        const u32 words = shared.tile(query_ring.index);
        ptx::store_shared_128(words, make_uint4(tile.q_tile, tile.batch, tile.head, tile.blocks));
        if (tile.q_tile < 0) {
            ptx::mbarrier_arrive(full);
        } else {
            ptx::mbarrier_arrive_expect(full, kQueryBytes);  // publishes the words too
            load(shared.query(query_ring.index), query_map, full, once, kQueryDim, kQueryPanelBytes,
                 tile.q_tile * kBlockM, tile.head, tile.batch);
        }
        query_ring.advance();
    }

    TW_DEVICE void load_key(int block, int kv_head, int batch) {
        const u32 full = shared.key_full(key_ring.index);
        ptx::mbarrier_wait(shared.key_empty(key_ring.index), key_ring.parity);
        ptx::mbarrier_arrive_expect(full, kKeyBytes);
        load(shared.key(key_ring.index), key_map, full, keep, kQueryDim, kBlockPanelBytes,
             block * kBlockN, kv_head, batch);
        key_ring.advance();
    }

    TW_DEVICE void load_value(int block, int kv_head, int batch) {
        const u32 full = shared.value_full(value_ring.index);
        ptx::mbarrier_wait(shared.value_empty(value_ring.index), value_ring.parity);
        ptx::mbarrier_arrive_expect(full, kValueBytes);
        load(shared.value(value_ring.index), value_map, full, keep, kValueDim, kBlockPanelBytes,
             block * kBlockN, kv_head, batch);
        value_ring.advance();
    }

    /// The place after `place` that this CTA works on.
    TW_DEVICE int next_place(int place) const {
        if (p.tickets != nullptr) return gridDim.x + ptx::fetch_add(p.tickets, 1);
        return place + gridDim.x;
    }

    TW_DEVICE void run() {
        const int places = p.q_tiles * p.batch_heads;
        int place = blockIdx.x;
        Tile tile = tile_at(place, p);  // the grid is no larger than the number of places
        open(tile);
        while (tile.q_tile >= 0) {
            const int kv_head = tile.head / p.heads_per_kv_head;
            // The next place is drawn late, which balances better, but early enough to hide its
            // latency and, with a second query buffer, that of the next query rows.
            const int draw_at = max(0, tile.blocks - 5), open_at = max(0, tile.blocks - 3);
            Tile next{-1, 0, 0, 0};
            const int last = begin_block(tile.q_tile * kBlockM, p) + tile.blocks - 1;
            // K runs one block ahead of V, as the consumers do. From right to left: the masked
            // block of a causal tile comes first.
            for (int i = 0; i < tile.blocks; ++i) {
                const int block = last - i;
                load_key(block, kv_head, tile.batch);
                if (i > 0) load_value(block + 1, kv_head, tile.batch);
                if (i == draw_at) place = next_place(place);
                if (i == open_at) {
                    if (place < places) next = tile_at(place, p);
                    if constexpr (kQueryBuffers == 2) open(next);
                }
            }
            load_value(last - tile.blocks + 1, kv_head, tile.batch);
            if constexpr (kQueryBuffers == 1) open(next);
            tile = next;
        }
    }
};

}  // namespace tw::attn
