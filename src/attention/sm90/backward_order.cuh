// The order of the backward kernel's tiles, of the blocks that each visits, and of the sums of dQ.
// backward_layout.cuh includes it after the configuration's constants; so does a test on the host,
// with constants of its own.
#pragma once

#include "attention/sm90/backward_parameters.h"

namespace twd::attn {

/// One tile of keys, as the producer announces it to the other roles.
struct KeyTile {
    int index;  ///< index of the tile in its head or sequence; -1: no more tiles
    int batch, kv_head;
    int blocks;       ///< number of visits, over all query heads of the group; may be 0
    int begin, each;  ///< for ranges by diagonals: first block of query rows that sees the tile,
                      ///< and how many do
    int rank;         ///< position in the order of work within its head
    int sequence;     ///< if sequences are packed
    SequenceRows rows;
    int first_q_block;   ///< the sequence's first block
    bool is_descending;  ///< for ranges by diagonals: does it visit its last block first?
    int keys;            ///< the tile's keys end here: a length, or the end of the keys
    int piece;           ///< 0: a whole tile, else 1 + the index among all pieces of tiles
};

/// A place in the order of work, as a kv head and a rank among its tiles.
struct Place {
    int rank;  ///< in the order of work; of heads that do not go upward, 0 is the longest
    int batch_kv_head;
};

/// The tile at a place in the order of work. Heads run in groups whose Q, dO and dQ fit in L2, the
/// longest tiles of a group first; the shortest tiles of all heads come last and fill the tail.
TW_DEVICE Place place_at(int place, const BackwardParameters& p) {
    const int early = p.kv_tiles - p.late_kv_tiles;
    const int early_places = early * p.batch_kv_heads;
    Place result;
    if constexpr (kUpward) {
        const int rest = place - p.upward_heads * p.kv_tiles;
        const int group_heads = rest < 0 ? p.group_heads : p.batch_kv_heads - p.upward_heads;
        const int group = rest < 0 ? place / (p.kv_tiles * group_heads) : 0;
        const int first_head = rest < 0 ? group * group_heads : p.upward_heads;
        const int heads = rest < 0 ? min(group_heads, p.upward_heads - first_head) : group_heads;
        const int in_group = rest < 0 ? place - group * p.kv_tiles * group_heads : rest;
        result.rank = in_group / heads;
        result.batch_kv_head = first_head + in_group % heads;
        return result;
    }
    if (place < early_places) {
        const int group = place / (early * p.group_heads);
        const int first_head = group * p.group_heads;
        const int heads = min(p.group_heads, p.batch_kv_heads - first_head);
        const int rest = place - group * early * p.group_heads;
        result.rank = rest / heads;
        result.batch_kv_head = first_head + rest % heads;
    } else {
        const int rest = place - early_places;
        result.rank = early + rest / p.batch_kv_heads;
        result.batch_kv_head = rest % p.batch_kv_heads;
    }
    return result;
}

/// Do tiles visit their blocks from the last one down? Outside of kernels that go upward,
/// deterministic sums go from low tiles to high ones, and this way no tile waits for long. And the
/// tiles of a group of query heads, which begin at the same time, then read the same blocks, which
/// stay in L2.
TW_DEVICE bool is_descending(const BackwardParameters& p) {
    return kDeterministic || p.heads_per_kv_head > 1;
}

/// The tile at a place, its blocks given by the diagonals. Tiles shrink as their keys advance.
TW_DEVICE KeyTile tile_at(const Place& place, const BackwardParameters& p) {
    KeyTile tile{};
    const bool up = kUpward && place.batch_kv_head < p.upward_heads;
    tile.index = tile.rank = up ? p.kv_tiles - 1 - place.rank : place.rank;
    tile.is_descending = kUpward ? !up : is_descending(p);
    tile.batch = place.batch_kv_head / p.kv_heads;
    tile.kv_head = place.batch_kv_head - tile.batch * p.kv_heads;
    const int first_key = tile.index * kBlockN;
    tile.keys = keys_of<kLengthBytes>(p.kv_lengths, tile.batch, p.kv_len);
    const int last_key = min(first_key + kBlockN, tile.keys) - 1;
    const int begin = kUpperBound ? max(0, first_key - p.upper_diagonal) : 0;
    const int end = kLowerBound ? min(p.q_len, last_key - p.lower_diagonal + 1) : p.q_len;
    tile.begin = begin / kBlockM;
    tile.each = begin < end ? (end + kBlockM - 1) / kBlockM - tile.begin : 0;
    if (kLengths && first_key >= tile.keys) tile.each = 0;
    tile.blocks = tile.each * p.heads_per_kv_head;
    return tile;
}

/// How many places there are, and what is at one of them: a tile or a piece of one, which makes
/// some of its visits. Tiles that would make an incomplete last wave are cut.
TW_DEVICE int places_of(const BackwardParameters& p) {
    const int tiles = p.kv_tiles * p.batch_kv_heads;
    if constexpr (!kCutsTiles) return tiles;
    return p.whole_places + (tiles - p.whole_places) * p.pieces;
}
TW_DEVICE KeyTile tile_or_piece_at(int place, const BackwardParameters& p) {
    if (!kCutsTiles || place < p.whole_places) return tile_at(place_at(place, p), p);
    const int index = place - p.whole_places, of_tile = index / p.pieces;
    const int piece = index - of_tile * p.pieces;
    KeyTile tile = tile_at(place_at(p.whole_places + of_tile, p), p);
    const int first = tile.each * piece / p.pieces, end = tile.each * (piece + 1) / p.pieces;
    tile.begin += tile.is_descending ? tile.each - end : first;
    tile.each = end - first;
    tile.blocks = tile.each * p.heads_per_kv_head;
    tile.piece = index + 1;
    return tile;
}

/// The block of query rows at a place in a tile's order.
TW_DEVICE int block_at(int place, int begin, int blocks, bool descending) {
    return begin + (descending ? blocks - 1 - place : place);
}

/// When a tile adds to a block's dQ (BlockPredecessor): with diagonals, after the previous tile,
/// or upward after the next one, unless it is the first that sees the block.
TW_DEVICE u32 predecessor_of(int tile, int block, bool descending, const BackwardParameters& p) {
    if (kUpward && !descending) {
        const int last_row = block * kBlockM + kBlockM - 1;
        return tile == min(p.kv_tiles - 1, last_row / kBlockN) ? 0 : tile + 2;
    }
    const int first = kLowerBound ? max(0, block * kBlockM + p.lower_diagonal) / kBlockN : 0;
    return tile == first ? 0 : tile;
}

/// Fused: to how many blocks, from the tile's first one on, does no further tile add? These are the
/// blocks that the tile visits last; upward, all blocks of the first keys' tile.
TW_DEVICE int finished_blocks(int tile, int begin, int each, bool descending,
                              const BackwardParameters& p) {
    if (kUpward && !descending) return tile == 0 ? each : 0;
    if (tile == p.kv_tiles - 1) return each;
    return kUpperBound ? (tile + 1) * kBlockN / kBlockM - begin : 0;
}

}  // namespace twd::attn
