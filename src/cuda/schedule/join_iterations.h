// Every dot stands in the loop.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// A last, narrower dot after the loop becomes one more iteration of it, and a dot without a loop a
/// loop of one iteration, where what the wider loads read beyond lies outside of both arrays and is
/// zero. Dots that do not fit this are left alone.
void join_iterations(Program& program);

}  // namespace tilewright::cuda::schedule
