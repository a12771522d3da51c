// A producer warpgroup runs ahead of the consumers.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Divides the body into two roles: one thread of a producer warpgroup (or all of them) issues the
/// copies, one or two consumer warpgroups do the rest. Each role loops over the programs of its
/// thread block, so that the producer loads for the next program while the consumers store the last
/// one. Chooses the order of programs from the coordinates of the copies.
void warp_specialise(Program& program);

}  // namespace tilewright::cuda::schedule
