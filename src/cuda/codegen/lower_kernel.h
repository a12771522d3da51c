// A kernel as a program without roles.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

/// The program, and what stands around it.
struct LoweredKernel {
    schedule::Program program;
    Generated generated;  ///< without source and shared memory
    std::string launch_bounds, parameters;
};

/// At level `split`: without places of buffers and without barriers. `workspace`: scratch is in
/// global memory. `blocks`: thread blocks of a cluster that share a program, and have the kernel's
/// warps together.
LoweredKernel lower_kernel(const KernelFacts& facts, const Plan& plan, const Target& target,
                           bool workspace, int blocks = 1);

}  // namespace tilewright::cuda
