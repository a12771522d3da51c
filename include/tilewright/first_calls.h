// First calls of attention on Hopper GPUs, and what they wait for.
#pragma once

#include "tilewright/compiler.h"

namespace TW_API tilewright {

/// While one of these exists, calls in all threads wait for full kernels and run no compact ones,
/// whatever TILEWRIGHT_COMPACT says.
class NoCompactKernels {
  public:
    NoCompactKernels();
    ~NoCompactKernels();
    NoCompactKernels(const NoCompactKernels&) = delete;
    NoCompactKernels& operator=(const NoCompactKernels&) = delete;
};

}  // namespace tilewright
