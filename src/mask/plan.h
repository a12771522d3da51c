// A mask turned into the tile sizes and orders of one kernel.
#pragma once

#include <cstdint>

#include "mask/mask_data.h"
#include "tilewright/tensor.h"

namespace tilewright::mask {

/// How the bits of a partial tile are stored. docs/explanation/masks.md draws them.
enum class BitOrder : std::uint8_t {
    rows,   ///< u64 [tiles, rows, ceil(columns / 64)]: bit j % 64 of word j / 64 of row i
    bytes,  ///< bool [tiles, rows, columns]
    atoms,  ///< i32 [tiles, rows / 64, columns / 64]: numbers of the 64 x 64 atoms in `atoms`
    wgmma,  ///< u32 [tiles, rows / 64, 128, ceil(columns / 64)]: by thread, where bit r of a
            ///< thread's words is register r of its m64nNk16 accumulator; columns % 8 == 0
};

/// What a kernel needs of its plan. Tiles are at most 4096 x 4096.
struct PlanOptions {
    std::int64_t block_q = 64;
    std::int64_t block_kv = 128;
    /// Rows of the plan are tiles of keys, and its lists hold tiles of queries, as dK and dV need
    /// them.
    bool by_kv = false;
    /// Bits as keys x queries, for kernels that compute the scores transposed.
    bool transpose_bits = false;
    BitOrder bits = BitOrder::rows;
    auto operator<=>(const PlanOptions&) const = default;
};

/// Which tiles a kernel visits, row by row. Full tiles need no test. A partial tile's bits are 0
/// outside the mask, so a kernel that tests them needs no other check along the streamed axis. A
/// tile that extends past the mask along the streamed axis is partial; one that does so along the
/// row axis counts as full if its rows inside attend to everything (a kernel drops the others).
struct MaskPlan {
    PlanOptions options;
    std::int64_t batch = 1, heads = 1;  ///< stored ones; 1 stands for any number
    std::int64_t rows = 0;              ///< tiles along the row axis
    std::int64_t columns = 0;           ///< tiles along the streamed axis
    Tensor headers;  ///< i32 [batch * heads * rows, 4]: first partial entry, number of them, first
                     ///< full run, number of them
    Tensor partial;  ///< i32 [>= 1, 2]: tile along the streamed axis, index of its bits
    Tensor full;     ///< i32 [>= 1, 2]: first tile, number of tiles
    Tensor bits;     ///< the distinct partial tiles as options.bits says; at least one
    Tensor atoms;    ///< u64 [n, 64]: BitOrder::atoms only, else undefined
    std::int64_t partial_tiles = 0, full_tiles = 0;  ///< over all stored rows

    /// The number of tiles that row `row` (over batch, heads, rows) visits.
    std::int64_t row_tiles(std::int64_t row) const;
    /// The work of a call with these numbers of batches and heads: i32 [batches * num_heads * rows]
    /// of (b * num_heads + h) * rows + row, most tiles first. Rows of equal length keep their
    /// order, so that neighbours share keys in the cache.
    Tensor work_list(std::int64_t batches, std::int64_t num_heads) const;
    std::int64_t nbytes() const;
};

/// UserError for tile sizes that are out of range or that the bit order cannot represent.
MaskPlan make_plan(const MaskData& data, const PlanOptions& options);

}  // namespace tilewright::mask
