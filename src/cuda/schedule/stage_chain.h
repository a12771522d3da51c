// Channels of chained products.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Loads that products read become copies by TMA: those of a loop that one product reads first are
/// one channel, a ring; those before the loops a channel of one slot for the whole program. Refused
/// where shared memory has no room for two slots of a ring.
void stage_chain(Program& program);

}  // namespace tilewright::cuda::schedule
