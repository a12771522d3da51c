// A traced kernel made ready for a GPU.
#pragma once

#include <memory>

#include "run/executable.h"

namespace tilewright::run {

/// Compiles the kernel when it first runs, once for arrays that allow wide accesses and once for
/// each other combination that occurs; runs on this thread's CUDA stream and waits for nothing.
std::unique_ptr<Executable> make_cuda_executable(ir::Function kernel, int device);

}  // namespace tilewright::run
