// Orders accesses to shared memory: those of threads among each other, and with TMA's.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Between writes of panels and the copies that read them: a fence by each writer, a wait until the
/// copies of the previous panel have left their slot, and a barrier of the warpgroup.
///
/// In programs without roles: a barrier before an access to memory that other threads may have
/// accessed since the last one, if either writes; buffers that share no place need none. Copies
/// under way are waited for before their buffer is read.
void insert_barriers(Program& program);

}  // namespace tilewright::cuda::schedule
