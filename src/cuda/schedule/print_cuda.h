// The scheduled form as CUDA C++.
#pragma once

#include "cuda/codegen/generate.h"
#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// The text of a synchronised program and how to launch it. Each operation is one case.
Generated print_cuda(const Program& program);

}  // namespace tilewright::cuda::schedule
