// Moves every dot into the loop.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// A last, narrower dot after the loop becomes one more iteration of it, and a dot without a loop
/// becomes a loop of one iteration, where everything that the wider loads read beyond it is outside
/// of both arrays and so zero. Dots that do not fit this are left alone.
void join_iterations(Program& program);

}  // namespace tilewright::cuda::schedule
