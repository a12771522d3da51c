// The built-in program for softmax.
#pragma once

#include <cstdint>

#include "tilewright/run.h"

namespace tilewright::cli {

/// Softmax of every row of x[rows, n]. On a GPU with 16-bit results, `exp` is the hardware's, with
/// a relative error of 2^-22.
Call softmax(std::int64_t n, bool gpu);

}  // namespace tilewright::cli
