// Clusters of two or four thread blocks.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Pairs blocks as `program.wanted_pairs` asks: of what two read, each loads half, for both.
/// Programs where that cannot be go without.
void pair_blocks(Program& program);

}  // namespace tilewright::cuda::schedule
