// Emulated additions to global memory.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

inline void reduce_add_pair(float* address, float first, float second) {
    if (reinterpret_cast<std::uintptr_t>(address) % 8 != 0) {
        std::fprintf(stderr, "misaligned pair\n");
        std::abort();
    }
    address[0] += first, address[1] += second;
}

}  // namespace twd::ptx
