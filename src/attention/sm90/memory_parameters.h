// Layout of the kernels' shared memory, in bytes: compiled by the host, which reserves it, and by
// NVRTC into the kernels, which use it.
#pragma once

namespace twd::attn {

// A tile lies in panels of 64 columns, [panel][row][64], as a TMA copy writes them and wgmma reads
// them.
constexpr int kPanel = 64;  ///< 16-bit columns in a row of the 128-byte swizzle

constexpr int panels(int dim) {
    return (dim + kPanel - 1) / kPanel;
}

constexpr int panel_bytes(int rows) {
    return rows * 2 * kPanel;
}

/// What determines the layout of kernels with tiles of queries: the forward pass, and dQ where
/// head_dim > 128.
struct QueryTileShape {
    int query_dim, value_dim;
    int warpgroups;            ///< consumers of 64 rows each
    int block_n;               ///< keys of a block
    int stages, value_stages;  ///< stages of K, of V
    int query_buffers;
    bool query_gradient;  ///< dO lies after Q
    bool listed;          ///< blocks are listed
    bool mask_bits;       ///< listed blocks have bits
};

struct QueryTileMemory {
    int query_panel, block_panel;           ///< bytes of a panel of Q; of K and V
    int query, grad_out, key, value, bits;  ///< one buffer of each
    int key_offset, value_offset, barrier_offset, bits_offset;
    int total;
};

constexpr QueryTileMemory memory_of(const QueryTileShape& s) {
    QueryTileMemory m{};
    m.query_panel = panel_bytes(64 * s.warpgroups);
    m.block_panel = panel_bytes(s.block_n);
    m.query = panels(s.query_dim) * m.query_panel;
    m.grad_out = s.query_gradient ? panels(s.value_dim) * m.query_panel : 0;
    m.key = panels(s.query_dim) * m.block_panel;
    m.value = panels(s.value_dim) * m.block_panel;
    m.bits = s.mask_bits ? s.warpgroups * 128 * (s.block_n / 64) * 4 : 0;
    m.key_offset = s.query_buffers * (m.query + m.grad_out);
    m.value_offset = m.key_offset + s.stages * m.key;
    m.barrier_offset = m.value_offset + s.value_stages * m.value;
    m.bits_offset = m.barrier_offset + (s.listed ? 384 : 256);
    m.total = m.bits_offset + s.stages * m.bits;
    return m;
}

/// The same for the backward's main kernel, whose tiles are of keys and whose blocks are of query
/// rows.
struct KeyTileShape {
    int query_dim, value_dim;
    int warpgroups;  ///< consumers
    bool over_128;   ///< all share one strip of 64 keys, and there is no dQ; else each has one
    int block_m;     ///< query rows of a block
    int stages;      ///< stages of Q and of dO
    bool listed, mask_bits;
    int key_buffers = 1;  ///< 2: K of the next tile is loaded before this one's is free
};

struct KeyTileMemory {
    int strips;                   ///< strips of 64 keys in a tile
    int tile_panel, block_panel;  ///< bytes: of K and V; of Q, dO, and dS, whose columns are keys
    int key, value;
    int query, grad_out, score, stat, bits;  ///< one buffer of each; stat: one number per query row
    /// dQ of a block is multiplied in parts of 64 rows, one for each warpgroup: rows of dQ if there
    /// are that many, else of dQ^T. Columns of a part, and its bytes in f32.
    int grad_columns, grad;
    int value_offset, query_offset, grad_out_offset, score_offset, grad_offset, stat_offset;
    int barrier_offset, bits_offset;
    int total;
};

constexpr KeyTileMemory memory_of(const KeyTileShape& s) {
    KeyTileMemory m{};
    m.strips = s.over_128 ? 1 : s.warpgroups;
    m.tile_panel = panel_bytes(64 * m.strips);
    m.block_panel = panel_bytes(s.block_m);
    m.key = panels(s.query_dim) * m.tile_panel;
    m.value = panels(s.value_dim) * m.tile_panel;
    m.query = panels(s.query_dim) * m.block_panel;
    m.grad_out = panels(s.value_dim) * m.block_panel;
    m.score = m.strips * m.block_panel;
    m.stat = s.block_m * 4;
    m.bits = s.mask_bits ? 64 * m.strips * 2 * ((s.block_m + 63) / 64) * 4 : 0;
    m.grad_columns = s.block_m != 64 * s.warpgroups ? s.block_m : s.query_dim;
    m.grad = 64 * m.grad_columns * 4;
    m.value_offset = s.key_buffers * m.key;
    m.query_offset = m.value_offset + m.value;
    m.grad_out_offset = m.query_offset + s.stages * m.query;
    m.score_offset = m.grad_out_offset + s.stages * m.grad_out;
    m.grad_offset = m.score_offset + 2 * m.score;
    m.stat_offset = m.grad_offset + (s.over_128 ? 0 : s.warpgroups * m.grad);
    m.barrier_offset = m.stat_offset + 2 * s.stages * m.stat;
    m.bits_offset = m.barrier_offset + (s.listed ? 464 : 448);
    m.total = m.bits_offset + s.stages * m.bits;
    return m;
}

}  // namespace twd::attn
