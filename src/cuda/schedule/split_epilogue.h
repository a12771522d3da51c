// What follows a product happens panel by panel.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Turns what is computed from accumulators and stored into a loop over panels of 64 columns, so
/// that 32 elements a thread are treated at a time, whatever the size of the tile. Stores that
/// TMA can make go through shared memory, two panels in turn.
void split_epilogue(Program& program);

}  // namespace tilewright::cuda::schedule
