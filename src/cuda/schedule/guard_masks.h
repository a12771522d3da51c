// Masks that hold for all of most tiles.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// A select by a mask of positions gets a scalar, computed from the ends of the positions' ranges,
/// that says that the mask holds for all of a warpgroup's rows and all columns of the tile.
void guard_masks(Program& program);

}  // namespace tilewright::cuda::schedule
