// Soft caps of many scores at once.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// In loops of chained products, a logistic(f x) + b of f32 tiles with constants f, a and b becomes
/// one operation (`soft_cap`), if the logistic function is approximate and has no other reader, and
/// b is so large that only the absolute error of the function matters. Threads then compute it by a
/// polynomial, or four with one division.
void join_soft_caps(Program& program);

}  // namespace tilewright::cuda::schedule
