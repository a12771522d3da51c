// Orders ordinary accesses to shared memory and TMA's.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Between writes of panels and the copies that read them: a fence by each writer, a wait until the
/// copies of the previous panel have left their slot, and a barrier of the warpgroup.
void insert_barriers(Program& program);

}  // namespace tilewright::cuda::schedule
