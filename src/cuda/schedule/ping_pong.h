// Ping-pong of warpgroups that have programs alternately.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Where a program has `turns`: only one warpgroup at a time issues products, and counts skip what
/// the other one consumes. So one stores its tile while the other one multiplies the next.
void ping_pong(Program& program);

}  // namespace tilewright::cuda::schedule
