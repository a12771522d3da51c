// A traced kernel prepared for a GPU.
#pragma once

#include <memory>
#include <vector>

#include "cuda/codegen/generate.h"
#include "cuda/runtime/kernel.h"
#include "run/executable.h"

namespace tilewright::run {

/// Compiles the kernel when it first runs: once for arrays that allow wide accesses, and once for
/// each other combination that occurs. Runs on this thread's CUDA stream and waits for nothing.
std::unique_ptr<Executable> make_cuda_executable(ir::Function kernel, int device);

/// A kernel for arrays for which `facts` hold.
struct CudaVariant {
    std::vector<cuda::RefFacts> facts;
    cuda::Kernel kernel;
    cuda::Generated generated;  ///< its texts are not needed
    int clusters = 0;           ///< that run at once, where thread blocks form clusters
};

/// The same for kernels compiled earlier: runs the first whose facts hold. `prepared` is the
/// function that they were generated from.
std::unique_ptr<Executable> make_prebuilt_cuda_executable(ir::Function prepared,
                                                          std::vector<CudaVariant> variants,
                                                          int device);

}  // namespace tilewright::run
