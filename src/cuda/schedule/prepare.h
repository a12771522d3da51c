// Cuts tile IR into tiles that warpgroups multiply.
#pragma once

#include <vector>

#include "ir/function.h"

namespace tilewright::cuda::schedule {

/// Rows and columns of a tile that warpgroups multiply.
struct Tile {
    std::int64_t rows = 128, columns = 256;
};

/// Optimises a traced kernel and cuts its blocks to tiles of at most this size, and dots to steps
/// of 128 bytes along their inner dimension. The grid may have further static axes after those of
/// `kernel`. Refused where a block cannot be cut.
ir::Function prepare_for_wgmma(const ir::Function& kernel, const Tile& tile);

/// The tiles to try, best first by estimated time.
std::vector<Tile> tiles_to_try(const ir::Function& kernel);

}  // namespace tilewright::cuda::schedule
