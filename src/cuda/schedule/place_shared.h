// Places in shared memory.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Gives every buffer and every channel's barriers an offset, buffers on 1,024 bytes as the swizzle
/// of 128 bytes wants. All of them live to the end, since the producer runs ahead of the consumers.
/// Refused when they do not fit.
void place_shared(Program& program);

}  // namespace tilewright::cuda::schedule
