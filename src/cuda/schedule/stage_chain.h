// Channels of chained products.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Makes loads that products read TMA copies. Those of a loop that one product reads first share a
/// channel, a ring; those before the loops have a channel of one slot for the whole program.
/// Refused where shared memory has no room for two slots of a ring.
void stage_chain(Program& program);

}  // namespace tilewright::cuda::schedule
