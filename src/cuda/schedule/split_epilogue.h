// Cuts the epilogue of a product into panels.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Turns what is computed from accumulators and stored into a loop over panels of 64 columns, so
/// that a thread works on 32 elements at a time, whatever the size of the tile. Stores that TMA can
/// do go through shared memory, alternating between two panels.
void split_epilogue(Program& program);

}  // namespace tilewright::cuda::schedule
