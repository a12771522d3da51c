// Cuts tile IR into tiles that warpgroups multiply.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cuda/schedule/program.h"
#include "ir/function.h"

namespace tilewright::cuda::schedule {

struct Prepared {
    ir::Function kernel;
    std::string refusal;  ///< why the kernel cannot be cut so; there is none then
    bool merged = false;  ///< the last two grid axes count all rows and columns of tiles
};
/// Optimises a traced kernel and cuts its blocks to tiles of at most this size, and dots to steps
/// of 128 bytes along their inner dimension. The grid may have further static axes after those of
/// `kernel`.
Prepared prepare_for_wgmma(const ir::Function& kernel, const Tile& tile);

/// Tiles of products that are not chained.
std::span<const Tile> product_tiles(const ir::Function& kernel);

/// Has the kernel products, and are its blocks cut into tiles of a size to choose? Blocks of
/// chained products are not.
bool has_tiles_to_choose(const ir::Function& kernel);

/// The tiles to try, best first by estimated time.
std::vector<Tile> tiles_to_try(const ir::Function& kernel);

}  // namespace tilewright::cuda::schedule
