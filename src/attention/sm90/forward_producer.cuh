// The producer of the kernels with tiles of queries: one thread that keeps TMA busy.
#pragma once

#include "attention/sm90/forward_layout.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/tma.cuh"

namespace twd::attn {

struct Producer {
    const TensorMap *query_map, *key_map, *value_map;
    const TensorMap* grad_out_map;  ///< used for dQ
    const ForwardParameters& p;
    Shared shared;
    u64 keep, once;  ///< L2 policies: for K and V, depending on whether many tiles read them or
                     ///< one, and for Q

    Ring<kQueryBuffers> query_ring{0, 1};  // parity 1: the first wait on "empty" passes
    Ring<kStages> key_ring{0, 1};
    Ring<kValueStages> value_ring{0, 1};

    TW_DEVICE void load(u32 target, const TensorMap* map, u32 barrier, u64 policy, int dim,
                        u32 panel_bytes, int row, int head, int batch) {
        TW_LOOP
        for (int panel = 0; panel < panels(dim); ++panel) {
            ptx::tensor_load(target + panel * panel_bytes, map, barrier, policy, panel * kPanel,
                             row, head, batch);
        }
    }

    /// Describes a tile and loads its query rows, once the consumers have released the buffer.
    TW_DEVICE_ONCE void open(const Tile& tile) {
        const u32 full = shared.query_full(query_ring.index);
        ptx::mbarrier_wait(shared.query_empty(query_ring.index), query_ring.parity);
        const u32 words = shared.tile(query_ring.index);
        ptx::store_shared_128(words, make_uint4(tile.q_tile, tile.batch, tile.head, tile.blocks));
        if constexpr (kPacked) {
            ptx::store_shared_128(words + 16, make_uint4(tile.rows.q_begin, tile.rows.q_len,
                                                         tile.rows.kv_begin, tile.rows.kv_len));
        }
        if constexpr (kStreamK) {
            ptx::store_shared_128(words + 16,
                                  make_uint4(tile.begin, tile.split, 0, tile.rows.kv_len));
        } else if constexpr (kLengths && !kPacked) {
            ptx::store_shared_32(words + 28, tile.rows.kv_len);
        }
        if (tile.q_tile < 0) {
            ptx::mbarrier_arrive(full);
        } else {
            // Publishes the words, too.
            ptx::mbarrier_arrive_expect(full, kQueryBytes + kGradOutBytes);
            const u32 target = shared.query(query_ring.index);
            if constexpr (kGroup > 1) {
                TW_LOOP
                for (int panel = 0; panel < panels(kQueryDim); ++panel) {
                    ptx::tensor_load(target + panel * kQueryPanelBytes, query_map, full, once,
                                     panel * kPanel, 0, tile.q_tile * (kBlockM / kGroup), tile.head,
                                     tile.batch);
                }
            } else {
                const int row = (kPacked ? tile.rows.q_begin : 0) + tile.q_tile * kBlockM;
                const int batch = kPacked ? 0 : tile.batch;
                load(target, query_map, full, once, kQueryDim, kQueryPanelBytes, row, tile.head,
                     batch);
                if constexpr (kQueryGradient) {
                    load(shared.grad_out(query_ring.index), grad_out_map, full, once, kValueDim,
                         kQueryPanelBytes, row, tile.head, batch);
                }
            }
        }
        query_ring.advance();
    }

    /// The forward's consumers need K one block ahead of V, those of dQ need both at once.
    static constexpr bool kKeyAhead = !kQueryGradient;

    /// Loads a block of K or V.
    TW_DEVICE_ONCE void load_block(u32 target, const TensorMap* map, u32 full, int dim, int block,
                                   const Tile& tile) {
        load(target, map, full, keep, dim, kBlockPanelBytes,
             (kPacked ? tile.rows.kv_begin : 0) + block * kBlockN, tile.head / p.heads_per_kv_head,
             kPacked ? 0 : tile.batch);
    }

    /// `entry` is where the block is listed, at place `index`, with `left` of its blocks still to
    /// come, this one included.
    TW_DEVICE_ONCE void load_key(int block, const Tile& tile, const MaskEntry& entry, int index,
                                 int left) {
        const u32 full = shared.key_full(key_ring.index);
        ptx::mbarrier_wait(shared.key_empty(key_ring.index), key_ring.parity);
        u32 bytes = kKeyBytes;
        if constexpr (kListedBlocks) {
            u64 live = ~0ull;
            if constexpr (kLiveLists) {
                if ((entry.states & kHidesSome) != 0) live = __ldg(p.mask.live + index);
            }
            ptx::store_shared_128(shared.block(key_ring.index),
                                  make_uint4(block, left | (entry.states & kAllStates) << 24,
                                             static_cast<u32>(live), static_cast<u32>(live >> 32)));
            if (kMaskBits && entry.bits >= 0) bytes += kBitsBytes;
        }
        ptx::mbarrier_arrive_expect(full, bytes);
        load_block(shared.key(key_ring.index), key_map, full, kQueryDim, block, tile);
        if constexpr (kMaskBits) {
            if (entry.bits >= 0) {
                const u8* const bits = reinterpret_cast<const u8*>(p.mask.bits);
                ptx::bulk_load(shared.bits(key_ring.index),
                               bits + static_cast<i64>(entry.bits) * kBitsBytes, kBitsBytes, full);
            }
        }
        key_ring.advance();
    }

    TW_DEVICE_ONCE void load_value(int block, const Tile& tile) {
        const u32 full = shared.value_full(value_ring.index);
        ptx::mbarrier_wait(shared.value_empty(value_ring.index), value_ring.parity);
        ptx::mbarrier_arrive_expect(full, kValueBytes);
        load_block(shared.value(value_ring.index), value_map, full, kValueDim, block, tile);
        value_ring.advance();
    }

    /// The next place after `place` that this CTA works on.
    TW_DEVICE int next_place(int place) const {
        if constexpr (kStreamK) return (place / p.slots + 1) * p.slots;
        if (p.next_tile != nullptr) return gridDim.x + ptx::fetch_add(p.next_tile, 1);
        return place + gridDim.x;
    }

    /// Words of the lists of a place's tile, whose loads may still be in flight.
    struct Listed {
        Place at;
        uint4 tile, rows;
    };
    TW_DEVICE_ONCE Listed read_tile(int place) const {
        Listed result;
        result.at = place_at(place, p);
        const int batch = p.mask.batches == 1 ? 0 : result.at.batch;
        const int head = p.mask.heads == 1 ? 0 : result.at.head;
        const i64 index =
            static_cast<i64>(batch * p.mask.heads + head) * p.q_tiles + result.at.rank;
        result.tile = ptx::load_constant_128(p.mask.tiles + index);
        if constexpr (kPacked) result.rows = ptx::load_constant_128(p.mask.sequences + index);
        return result;
    }
    /// The tile that these words describe; places without a tile are skipped, which advances
    /// `place`.
    TW_DEVICE Tile tile_of(Listed& listed, int& place, int places) const {
        if constexpr (kPacked) {
            while (static_cast<int>(listed.tile.x) < 0) {
                place = next_place(place);
                if (place >= places) return {-1, 0, 0, 0, {}};
                listed = read_tile(place);
            }
        }
        Tile tile{static_cast<int>(listed.tile.x),
                  listed.at.batch,
                  listed.at.head,
                  static_cast<int>(listed.tile.z),
                  {}};
        if constexpr (kPacked) {
            tile.batch = listed.tile.w;
            tile.rows = {static_cast<int>(listed.rows.x), static_cast<int>(listed.rows.y),
                         static_cast<int>(listed.rows.z), static_cast<int>(listed.rows.w)};
        } else if constexpr (kLengths) {
            tile.rows.kv_len = keys_of<kLengthBytes>(p.kv_lengths, tile.batch, p.kv_len);
        }
        return tile;
    }

    TW_DEVICE MaskEntry read_entry(int index) const {
        const uint4 words = ptx::load_constant_128(p.mask.entries + index);
        return {static_cast<int>(words.x), static_cast<int>(words.y), static_cast<int>(words.z),
                static_cast<int>(words.w)};
    }

    TW_DEVICE void run() {
        if constexpr (kListedBlocks) {
            run_listed();
        } else {
            run_ranges();
        }
    }

    /// Tiles whose key blocks are a range given by the diagonals.
    TW_DEVICE void run_ranges() {
        const int places = kStreamK ? range_begin(blockIdx.x + 1, p) : p.q_tiles * p.batch_heads;
        int place = kStreamK ? range_begin(blockIdx.x, p) : blockIdx.x;
        Tile tile =
            tile_at(place_at(place, p), p);  // the grid is no larger than the number of places
        open(tile);
        while (tile.q_tile >= 0) {
            // The next place is claimed late, which balances better, but early enough to hide the
            // latency of the claim and, with a second query buffer, of loading the next query rows.
            const int draw_at = max(0, tile.blocks - 5), open_at = max(0, tile.blocks - 3);
            Tile next{-1, 0, 0, 0, {}};
            const int last = tile.begin + tile.blocks - 1;
            // From right to left: the masked block of a causal tile comes first.
            TW_LOOP
            for (int i = 0; i < tile.blocks; ++i) {
                const int block = last - i;
                load_key(block, tile, {}, 0, 0);
                if (!kKeyAhead || i > 0) load_value(block + (kKeyAhead ? 1 : 0), tile);
                if (i == draw_at) place = next_place(place);
                if (i == open_at) {
                    if (place < places) next = tile_at(place_at(place, p), p);
                    if constexpr (kQueryBuffers == 2) open(next);
                }
            }
            if constexpr (kKeyAhead) load_value(last - tile.blocks + 1, tile);
            if constexpr (kQueryBuffers == 1) open(next);
            tile = next;
        }
    }

    /// Tiles whose key blocks are listed. Counter, tile and entry are a chain of dependent loads,
    /// so one link is read per block.
    TW_DEVICE void run_listed() {
        const int places = p.q_tiles * p.batch_heads;
        int place = blockIdx.x;
        Listed listed = read_tile(place);
        Tile tile = tile_of(listed, place, places);
        int entry_index = listed.tile.y;
        MaskEntry entry{};
        if (tile.q_tile >= 0) entry = read_entry(entry_index);
        open(tile);
        while (tile.q_tile >= 0) {
            const int step = max(0, tile.blocks - 6);
            Tile next{-1, 0, 0, 0, {}};
            MaskEntry next_entry{};
            int left = entry.count, previous = 0, next_index = 0;
            MaskEntry following = read_entry(entry_index + 1);  // the lists end with a spare entry
            TW_LOOP
            for (int i = 0; i < tile.blocks; ++i) {
                if (left == 0) {
                    entry = following;
                    left = entry.count;
                    following = read_entry(++entry_index + 1);
                }
                const int block = entry.first + entry.count - left;
                load_key(block, tile, entry, entry_index, left);
                if (!kKeyAhead || i > 0) load_value(kKeyAhead ? previous : block, tile);
                previous = block;
                --left;
                if (i == step) place = next_place(place);
                if (i == min(step + 1, tile.blocks - 1) && place < places) {
                    listed = read_tile(place);
                }
                if (i == min(step + 2, tile.blocks - 1) && place < places) {
                    next = tile_of(listed, place, places);
                    next_index = listed.tile.y;
                    if (next.q_tile >= 0) next_entry = read_entry(next_index);
                }
                if (kQueryBuffers == 2 && i == min(step + 3, tile.blocks - 1)) open(next);
            }
            if constexpr (kKeyAhead) load_value(previous, tile);
            if constexpr (kQueryBuffers == 1) open(next);
            tile = next;
            entry = next_entry;
            entry_index = next_index;
        }
    }
};

}  // namespace twd::attn
