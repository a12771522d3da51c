// Where products are fenced, committed and waited for.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// One group of products per iteration. With three slots or more, an iteration's group stays in
/// flight into the next one, where its slot is released; else it is waited for at once.
void place_waits(Program& program);

}  // namespace tilewright::cuda::schedule
