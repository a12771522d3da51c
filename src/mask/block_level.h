// The block-level view of a mask: which blocks are empty, partial, full.
#pragma once

#include <vector>

#include "mask/mask_data.h"
#include "tilewright/mask.h"

namespace tilewright::mask {

/// Adjacent blocks in a row of blocks.
struct BlockSpan {
    std::int32_t first = 0, count = 1;
    bool full = false;
};

/// Rows of blocks for each stored batch and head. Spans are in order; blocks in no span are empty.
struct BlockLevel {
    std::int64_t batch = 1, heads = 1;
    std::int64_t rows = 0, columns = 0;
    std::vector<std::int64_t> row_begin{0};  ///< batch * heads * rows + 1 indices into `spans`
    std::vector<BlockSpan> spans;

    std::span<const BlockSpan> row(std::int64_t row) const;
    /// Appends to the row that is being built.
    void add(std::int64_t first, std::int64_t count, bool full);
    void end_row() { row_begin.push_back(static_cast<std::int64_t>(spans.size())); }
};

BlockLevel block_level(const MaskData& data, BlockSize size);
BlockLevel transposed(const BlockLevel& level);
/// The partial or the full blocks as lists, for `batch` x `heads`.
BlockLists lists(const BlockLevel& level, bool full, std::int64_t batch, std::int64_t heads);

/// The blocks that lists name, checked. `full_*` may be undefined. There are at least `columns`
/// blocks of keys; lists may have fewer columns, as long as they hold as many as they count.
BlockLevel parse_lists(const Tensor& num, const Tensor& indices, const Tensor& full_num,
                       const Tensor& full_indices, std::int64_t columns);
/// All pairs in the blocks that are full (or partial).
MaskData pairs_of(const BlockLevel& level, bool full, BlockSize size, std::int64_t q_len,
                  std::int64_t kv_len);

}  // namespace tilewright::mask
