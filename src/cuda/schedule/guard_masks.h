// Masks that hold for the whole of most tiles.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Gives a select by a mask of positions a scalar condition, computed from the ends of the
/// positions' ranges, that says when the mask holds for all of a warpgroup's rows and all columns
/// of the tile.
void guard_masks(Program& program);

}  // namespace tilewright::cuda::schedule
