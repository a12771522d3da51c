// Order between ordinary accesses and TMA's.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Between writes of panels and the copies that read them: a fence of each writer, a wait until the
/// copies of the panel before have left their slot, and a meeting of the warpgroup.
void insert_barriers(Program& program);

}  // namespace tilewright::cuda::schedule
