// The threads of the backward kernel that move data: the producer keeps TMA busy, the writers add
// dQ to its sums.
#pragma once

#include "attention/sm90/backward_layout.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/sync.cuh"
#include "cuda/device/ptx/tma.cuh"

namespace twd::attn {

/// Visits to blocks that follow from the diagonals. Where blocks are described they come head by
/// head of the group, since mods accumulate gradients of captures by head; otherwise all heads
/// visit a block before the next one.
struct RangeVisits {
    const BackwardParameters& p;
    const KeyTile& tile;
    int group = 0, place = 0;

    TW_DEVICE void advance() {
        if constexpr (kDescribed) {
            if (++place == tile.each) {
                place = 0;
                ++group;
            }
        } else if (++group == p.heads_per_kv_head) {
            group = 0;
            ++place;
        }
    }

    TW_DEVICE_ONCE BlockVisit next() {
        BlockVisit visit{block_at(place, tile.begin, tile.each, tile.is_descending),
                         tile.kv_head * p.heads_per_kv_head + group, 0, -1};
        advance();
        if constexpr (kDescribed) {
            TW_LOOP
            for (int strip = 0; strip < kStrips; ++strip) {
                const int first_key = tile.index * kBlockN + strip * 64;
                const bool masked = is_masked(first_key, visit.block, tile.keys, p);
                visit.states |= (masked ? kBlockPartial : kBlockFull) << 2 * strip;
            }
            if (place == 0) visit.states |= kLastOfHead;
            if constexpr (kDeterministic) {
                visit.states |= predecessor_of(tile.index, visit.block, true, p)
                                << kPredecessorShift;
            }
        }
        return visit;
    }
};

/// The tile at a place, as the lists have it.
TW_DEVICE MaskTile read_tile(const BackwardParameters& p, int rank, int batch, int head) {
    const int plane =
        (p.mask.batches == 1 ? 0 : batch) * p.mask.heads + (p.mask.heads == 1 ? 0 : head);
    const uint4 words =
        ptx::load_constant_128(p.mask.tiles + static_cast<i64>(plane) * p.kv_tiles + rank);
    return {static_cast<int>(words.x), static_cast<int>(words.y), static_cast<int>(words.z),
            static_cast<int>(words.w)};
}

TW_DEVICE KeyTile listed_tile_at(const Place& place, const BackwardParameters& p) {
    KeyTile tile{};
    tile.rank = place.rank;
    tile.batch = place.batch_kv_head / p.kv_heads;
    tile.kv_head = place.batch_kv_head - tile.batch * p.kv_heads;
    const int first_head = tile.kv_head * p.heads_per_kv_head;
    const MaskTile listed = read_tile(p, place.rank, tile.batch, first_head);
    tile.index = listed.index;
    tile.sequence = listed.sequence;
    tile.blocks = listed.blocks * (p.mask.heads == 1 ? p.heads_per_kv_head : 1);
    TW_LOOP
    for (int group = 1; group < p.heads_per_kv_head && p.mask.heads > 1; ++group) {
        tile.blocks += read_tile(p, place.rank, tile.batch, first_head + group).blocks;
    }
    if constexpr (kPacked) {
        const uint4 rows = ptx::load_constant_128(p.mask.sequences + place.rank);
        tile.rows = {static_cast<int>(rows.x), static_cast<int>(rows.y), static_cast<int>(rows.z),
                     static_cast<int>(rows.w)};
        tile.first_q_block = __ldg(p.mask.first_q_blocks + place.rank);
    }
    if constexpr (kLengths) {
        tile.keys = keys_of<kLengthBytes>(p.kv_lengths, kPacked ? tile.sequence : tile.batch,
                                          kPacked ? tile.rows.kv_len : p.kv_len);
    }
    return tile;
}

/// Visits to listed blocks, head by head of the group.
struct ListedVisits {
    const BackwardParameters& p;
    const KeyTile& tile;
    int group = -1, left_of_head = 0, left_of_entry = 0, entry_index = 0;
    MaskEntry entry{}, following{};

    TW_DEVICE MaskEntry read_entry(int index) const {
        const uint4 words = ptx::load_constant_128(p.mask.entries + index);
        return {static_cast<int>(words.x), static_cast<int>(words.y), static_cast<int>(words.z),
                static_cast<int>(words.w)};
    }

    TW_DEVICE_ONCE BlockVisit next() {
        while (left_of_head == 0) {
            const int head = tile.kv_head * p.heads_per_kv_head + ++group;
            const MaskTile listed = read_tile(p, tile.rank, tile.batch, head);
            left_of_head = listed.blocks;
            entry_index = listed.first_entry;
            entry = read_entry(entry_index);
            following = read_entry(entry_index + 1);  // the lists end with a spare entry
            left_of_entry = entry.count;
        }
        if (left_of_entry == 0) {
            entry = following;
            left_of_entry = entry.count;
            following = read_entry(++entry_index + 1);
        }
        --left_of_head;
        int states = entry.states | (left_of_head == 0 ? kLastOfHead : 0);
        if constexpr (kPacked) {
            const int end = (entry.first + left_of_entry) * kBlockM;
            if (end > tile.rows.q_len) states |= kRaggedRows;
        }
        if constexpr (kMaskBits && kLengths) {
            TW_LOOP
            for (int strip = 0; strip < kStrips; ++strip) {
                const bool cut = tile.index * kBlockN + strip * 64 + 64 > tile.keys;
                if (cut && (states >> 2 * strip & 3) == kBlockFull) {
                    states ^= (kBlockFull ^ kBlockCut) << 2 * strip;
                }
            }
        }
        // From the last row down: tiles of a causal mask then wait least.
        return {entry.first + --left_of_entry, tile.kv_head * p.heads_per_kv_head + group, states,
                entry.bits};
    }
};

struct Producer {
    const TensorMap *query_map, *key_map, *value_map, *grad_out_map;
    const BackwardParameters& p;
    Shared shared;
    u64 keep, once;  ///< L2 policies: many tiles read Q and dO, one reads K and V

    // Parity 1: the first wait on "empty" passes.
    Ring<kKeyBuffers> tile_ring{0, 1};
    u32 value_parity = 1;
    Ring<kStages> query_ring{0, 1}, grad_out_ring{0, 1};
    Ring<kDescriptions> visits;

    TW_DEVICE_ONCE void load(u32 target, const TensorMap* map, u32 barrier, u64 policy, int dim,
                             u32 panel_bytes, int row, int head, int batch) {
        TW_LOOP
        for (int panel = 0; panel < panels(dim); ++panel) {
            ptx::tensor_load(target + panel * panel_bytes, map, barrier, policy, panel * kPanel,
                             row, head, batch);
        }
    }

    /// Describes a tile and loads its K and V, once all readers have left the tile that was there.
    /// With two buffers of K this is early, and V follows with the first block.
    TW_DEVICE_ONCE void open(const KeyTile& tile) {
        const u32 buffer = tile_ring.index, full = shared.key_full(buffer);
        ptx::mbarrier_wait(shared.tile_empty(buffer), tile_ring.parity);
        tile_ring.advance();
        ptx::store_shared_128(shared.tile(buffer),
                              make_uint4(tile.index, tile.batch, tile.kv_head, tile.blocks));
        ptx::store_shared_128(shared.tile(buffer) + 16,
                              make_uint4(tile.begin, tile.each, tile.rank,
                                         kListedBlocks ? tile.sequence : tile.is_descending));
        if constexpr (kPacked) {
            ptx::store_shared_128(shared.tile() + 32,
                                  make_uint4(tile.rows.q_begin, tile.rows.q_len, tile.rows.kv_begin,
                                             tile.rows.kv_len));
            ptx::store_shared_32(shared.tile() + 48, tile.first_q_block);
        }
        if constexpr (kLengths) ptx::store_shared_32(shared.tile() + 52, tile.keys);
        if constexpr (kCutsTiles) ptx::store_shared_32(shared.tile(buffer) + 32, tile.piece);
        if constexpr (kLiveLists) {
            const int plane = (p.mask.batches == 1 ? 0 : tile.batch) * p.mask.heads +
                              (p.mask.heads == 1 ? 0 : tile.kv_head * p.heads_per_kv_head);
            const i64 place = static_cast<i64>(plane) * p.kv_tiles + tile.rank;
            ptx::store_shared_128(shared.live(), ptx::load_constant_128(p.mask.live + 2 * place));
        }
        if (tile.index < 0) {
            ptx::mbarrier_arrive(full);
            return;
        }
        ptx::mbarrier_arrive_expect(full, kKeyBytes);  // publishes the words, too
        load(shared.key(buffer), key_map, full, once, kQueryDim, kTilePanelBytes, first_key(tile),
             tile.kv_head / p.splits, tile.batch);
        if constexpr (!kAhead) load_value(tile);
    }
    TW_DEVICE int first_key(const KeyTile& tile) const {
        return (kPacked ? tile.rows.kv_begin : 0) + tile.index * kBlockN;
    }
    TW_DEVICE void load_value(const KeyTile& tile) {
        if constexpr (kAhead) {
            ptx::mbarrier_wait(shared.value_empty(), value_parity);
            value_parity ^= 1;
        }
        ptx::mbarrier_arrive_expect(shared.value_full(), kValueBytes);
        load(shared.value(), value_map, shared.value_full(), once, kValueDim, kTilePanelBytes,
             first_key(tile), tile.kv_head / p.splits, tile.batch);
    }

    /// Loads the rows of a visit and writes its description, if there is one, for the other roles.
    TW_DEVICE_ONCE void load_block(const KeyTile& tile, const BlockVisit& visit, int next_states,
                                   bool first) {
        const int row = (kPacked ? tile.rows.q_begin : 0) + visit.block * kBlockM;
        const int block = (kPacked ? tile.first_q_block : 0) + visit.block;
        const i64 stats =
            (static_cast<i64>(query_head_row(tile.batch, visit.head, p)) * p.q_blocks + block) *
            kBlockM;
        u32 full = shared.query_full(query_ring.index), bytes = kQueryBytes + kStatBytes;
        ptx::mbarrier_wait(shared.query_empty(query_ring.index), query_ring.parity);
        if constexpr (kDescribed) {
            ptx::store_shared_128(shared.visit(visits.index),
                                  make_uint4(visit.block, visit.head, visit.states, next_states));
            visits.advance();
        }
        if (kMaskBits && visit.bits >= 0) bytes += kBitsBytes;
        ptx::mbarrier_arrive_expect(full, bytes);
        load(shared.query(query_ring.index), query_map, full, keep, kQueryDim, kBlockPanelBytes,
             row, visit.head, tile.batch);
        ptx::bulk_load(shared.lse(query_ring.index), p.row_lse + stats, kStatBytes, full);
        if constexpr (kMaskBits) {
            if (visit.bits >= 0) {
                const u8* const bits = reinterpret_cast<const u8*>(p.mask.bits);
                ptx::bulk_load(shared.bits(query_ring.index),
                               bits + static_cast<i64>(visit.bits) * kBitsBytes, kBitsBytes, full);
            }
        }
        query_ring.advance();
        if (kAhead && first) load_value(tile);

        full = shared.grad_out_full(grad_out_ring.index);
        ptx::mbarrier_wait(shared.grad_out_empty(grad_out_ring.index), grad_out_ring.parity);
        ptx::mbarrier_arrive_expect(full, kGradOutBytes + kStatBytes);
        load(shared.grad_out(grad_out_ring.index), grad_out_map, full, keep, kValueDim,
             kBlockPanelBytes, row, visit.head, tile.batch);
        ptx::bulk_load(shared.delta(grad_out_ring.index), p.row_delta + stats, kStatBytes, full);
        grad_out_ring.advance();
    }

    /// The next place after `place` that this CTA works on.
    TW_DEVICE int next_place(int place) const {
        if (p.next_tile != nullptr) return gridDim.x + ptx::fetch_add(p.next_tile, 1);
        return place + gridDim.x;
    }

    TW_DEVICE void run() {
        const int places = places_of(p);
        for (int place = blockIdx.x; place < places; place = next_place(place)) {
            if constexpr (kListedBlocks) {
                const KeyTile tile = listed_tile_at(place_at(place, p), p);
                if (tile.index < 0) continue;
                open(tile);
                visit_all(tile, ListedVisits{p, tile});
            } else {
                const KeyTile tile = tile_or_piece_at(place, p);
                open(tile);
                visit_all(tile, RangeVisits{p, tile});
            }
        }
        KeyTile none{};
        none.index = -1;
        open(none);
    }

    template <typename Visits>
    TW_DEVICE void visit_all(const KeyTile& tile, Visits visits_of_tile) {
        BlockVisit following{};
        if (tile.blocks > 0) following = visits_of_tile.next();
        TW_LOOP
        for (int i = 0; i < tile.blocks; ++i) {
            const BlockVisit visit = following;
            if (i + 1 < tile.blocks) following = visits_of_tile.next();
            load_block(tile, visit, following.states, i == 0);
        }
    }
};

/// One thread per warpgroup: adds the dQ that its warpgroup left in shared memory to the sums.
struct Writer {
    const BackwardParameters& p;
    const Shared shared;
    const u32 warpgroup;

    u32 parity = 0;

    /// The place of a block's sums; `block` counts over all sequences of the head.
    TW_DEVICE i64 chunk_of(int head_row, int block) const {
        return (static_cast<i64>(head_row) * p.q_blocks + block) * kGradParts + warpgroup;
    }

    TW_DEVICE void wait_for_predecessor(i64 chunk, u32 predecessor) const {
        if (!kDeterministic || grad_bytes(warpgroup) == 0) return;
        while (ptx::load_acquire(p.last_added + chunk) != predecessor) {
        }
    }

    /// Stores or adds what the warpgroup left. Sums that are stored first need not be cleared.
    TW_DEVICE void add(i64 chunk, bool store) {
        const u32 bytes = grad_bytes(warpgroup);
        if (bytes > 0) {
            float* const sums = p.grad_query_sums + chunk * (kGradBytes / 4);
            if (store) {
                ptx::bulk_store(sums, shared.grad(warpgroup), bytes);
            } else {
                ptx::bulk_add_f32(sums, shared.grad(warpgroup), bytes);
            }
            ptx::bulk_commit();
            ptx::bulk_wait_read<0>();
        }
        ptx::mbarrier_arrive(shared.grad_empty(warpgroup));
    }

    /// After a fence a relaxed store suffices: one that releases would be a second fence.
    TW_DEVICE void add_in_order(i64 chunk, u32 predecessor, u32 rank) {
        add(chunk, kDeterministic && predecessor == 0);
        if constexpr (kDeterministic) {
            if (grad_bytes(warpgroup) == 0) return;
            ptx::bulk_wait<0>();
            ptx::fence_device();
            ptx::store_relaxed(p.last_added + chunk, rank + 1);
        }
    }

    /// Fetches what the tiles before added, for the warpgroup, which stores the rows of dQ.
    TW_DEVICE void give_back(i64 chunk, u32 predecessor) {
        const u32 bytes = grad_bytes(warpgroup), full = shared.sums_full(warpgroup);
        if (predecessor != 0 && bytes > 0) {
            wait_for_predecessor(chunk, predecessor);
            ptx::fence_async();
            ptx::mbarrier_arrive_expect(full, bytes);
            ptx::bulk_load(shared.grad(warpgroup), p.grad_query_sums + chunk * (kGradBytes / 4),
                           bytes, full);
        }
        wait_for_grad();
        ptx::mbarrier_arrive(shared.grad_empty(warpgroup));
    }

    TW_DEVICE void wait_for_grad() {
        ptx::mbarrier_wait(shared.grad_full(warpgroup), parity);
        parity ^= 1;
    }

    TW_DEVICE void run() {
        Ring<kKeyBuffers> tile_ring;
        Ring<kDescriptions> visits;
        while (true) {
            const u32 buffer = tile_ring.index;
            ptx::mbarrier_wait(shared.key_full(buffer), tile_ring.parity);
            tile_ring.advance();
            const uint4 tile = ptx::load_shared_128(shared.tile(buffer));
            const uint4 more = ptx::load_shared_128(shared.tile(buffer) + 16);
            const u32 first_q_block = kPacked ? ptx::load_shared_32(shared.tile() + 48) : 0;
            ptx::mbarrier_arrive(shared.tile_empty(buffer));
            if (static_cast<int>(tile.x) < 0) return;
            const int batch = tile.y, blocks = tile.w, begin = more.x, each = more.y, rank = more.z;
            if constexpr (kDescribed) {
                TW_LOOP
                for (int i = 0; i < blocks; ++i) {
                    wait_for_grad();
                    const uint4 visit = ptx::load_shared_128(shared.visit(visits.index));
                    visits.advance();
                    const i64 chunk =
                        chunk_of(query_head_row(batch, visit.y, p), first_q_block + visit.x);
                    const u32 predecessor = visit.z >> kPredecessorShift;
                    wait_for_predecessor(chunk, predecessor);
                    add_in_order(chunk, predecessor, rank);
                }
            } else {
                const int first_head = tile.z * p.heads_per_kv_head;
                const int first_row = query_head_row(batch, first_head, p);
                const bool descending = more.w != 0;
                const int finished =
                    kFused ? finished_blocks(tile.x, begin, each, descending, p) : 0;
                TW_LOOP
                for (int i = 0; i < each; ++i) {
                    const int block = block_at(i, begin, each, descending);
                    const u32 predecessor =
                        kDeterministic ? predecessor_of(rank, block, descending, p) : 0;
                    TW_LOOP
                    for (int group = 0; group < p.heads_per_kv_head; ++group) {
                        const i64 chunk = chunk_of(first_row + group, block);
                        if (kFused && i >= each - finished) {
                            give_back(chunk, predecessor);
                            continue;
                        }
                        // First, so that its trip to L2 passes while the product is computed.
                        wait_for_predecessor(chunk, predecessor);
                        wait_for_grad();
                        add_in_order(chunk, predecessor, rank);
                    }
                }
            }
        }
    }
};

}  // namespace twd::attn
