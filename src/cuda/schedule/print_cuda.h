// The scheduled form as CUDA C++.
#pragma once

#include "cuda/codegen/generate.h"
#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// The text of a synchronised program, one case per operation, and how to launch it.
Generated print_cuda(const Program& program);

}  // namespace tilewright::cuda::schedule
