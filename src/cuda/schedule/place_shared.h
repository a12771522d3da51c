// Places in shared memory.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Gives every buffer and every channel's barriers an offset; buffers are aligned to 1,024 bytes
/// for the 128-byte swizzle. All of them live to the end, since the producer runs ahead of the
/// consumers. Refused when they do not fit.
///
/// In programs without roles buffers share places where their lifetimes do not meet, and what they
/// take may be more than the device has: the caller then tries fewer stages.
void place_shared(Program& program);

}  // namespace tilewright::cuda::schedule
