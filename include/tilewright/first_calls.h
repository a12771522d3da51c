// First calls of attention on Hopper GPUs, and what they wait for.
#pragma once

#include "tilewright/compiler.h"

namespace TW_API tilewright {

/// While one exists, calls in all threads wait for full kernels, whatever TILEWRIGHT_COMPACT says,
/// and run no compact ones, which give the same results, compile three times as fast, run slower.
class NoCompactKernels {
  public:
    NoCompactKernels();
    ~NoCompactKernels();
    NoCompactKernels(const NoCompactKernels&) = delete;
    NoCompactKernels& operator=(const NoCompactKernels&) = delete;
};

}  // namespace tilewright
