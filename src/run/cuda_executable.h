// A traced kernel made ready for a GPU.
#pragma once

#include <memory>
#include <vector>

#include "cuda/codegen/generate.h"
#include "cuda/runtime/kernel.h"
#include "run/executable.h"

namespace tilewright::run {

/// Compiles the kernel when it first runs, once for arrays that allow wide accesses and once for
/// each other combination that occurs; runs on this thread's CUDA stream and waits for nothing.
std::unique_ptr<Executable> make_cuda_executable(ir::Function kernel, int device);

/// A kernel for arrays of which `facts` hold.
struct CudaVariant {
    std::vector<cuda::RefFacts> facts;
    cuda::Kernel kernel;
    cuda::Generated generated;  ///< its texts are not needed
};

/// The same of kernels that were compiled before: the first whose facts hold runs. `prepared` is
/// what they were generated from.
std::unique_ptr<Executable> make_prebuilt_cuda_executable(ir::Function prepared,
                                                          std::vector<CudaVariant> variants,
                                                          int device);

}  // namespace tilewright::run
