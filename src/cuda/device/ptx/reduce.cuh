// Additions to global memory that give nothing back.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

/// PTX ISA, red.global.add.v2.f32, 8-byte aligned (sm_90; relaxed, device scope).
TW_DEVICE void reduce_add_pair(float* address, float first, float second) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(address), "f"(first),
                 "f"(second)
                 : "memory");
}

}  // namespace twd::ptx
