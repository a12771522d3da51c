// Every tile in registers gets one layout.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Starts from the accumulators and follows elementwise operations and views, so that no element
/// ever moves between threads. Refused for tiles that this does not reach.
void assign_layouts(Program& program);

}  // namespace tilewright::cuda::schedule
