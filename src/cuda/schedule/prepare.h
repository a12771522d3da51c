// Cuts tile IR into tiles that warpgroups multiply.
#pragma once

#include <string>
#include <vector>

#include "ir/function.h"

namespace tilewright::cuda::schedule {

/// Rows and columns of a tile that warpgroups multiply.
struct Tile {
    std::int64_t rows = 128, columns = 256;
};

struct Prepared {
    ir::Function kernel;
    std::string refusal;  ///< why the kernel cannot be cut so; there is none then
};
/// Optimises a traced kernel and cuts its blocks to tiles of at most this size, and dots to steps
/// of 128 bytes along their inner dimension. The grid may have further static axes after those of
/// `kernel`.
Prepared prepare_for_wgmma(const ir::Function& kernel, const Tile& tile);

/// The tiles to try, best first by estimated time.
std::vector<Tile> tiles_to_try(const ir::Function& kernel);

}  // namespace tilewright::cuda::schedule
