// Masks sampled as rasters and as characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mask/block_level.h"
#include "mask/mask_data.h"

namespace tilewright::mask {

/// One head as a raster: cell (y, x) is the fraction of its pairs that attend.
struct Picture {
    std::int64_t b = 0, h = 0;
    std::int64_t height = 0, width = 0;
    std::vector<float> cells;
};

/// Up to `most` of the stored heads, with at most `most_cells` cells on a side. Masks of more than
/// 4096 queries or keys are drawn in whole 64 x 64 pieces.
std::vector<Picture> pictures(const MaskData& data, std::int64_t most, std::int64_t most_cells);

/// Grids of characters for at most `limit` heads, of at most `rows` x `columns`.
std::string characters(const BlockLevel& level, std::int64_t rows, std::int64_t columns,
                       std::int64_t limit);

}  // namespace tilewright::mask
