// Sums of rows over the iterations of a loop, added up over threads once.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// In loops of chained products, a sum of rows l <- l f + sum(tile) that starts from zero and is
/// read after the loop only: each thread sums its own elements (`partial`), and what the threads
/// of a row have is joined after the loop (`join_lanes`). Threads of a row share f.
void defer_sums(Program& program);

}  // namespace tilewright::cuda::schedule
