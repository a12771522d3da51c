// The scheduled form as CUDA C++.
#pragma once

#include <string>

#include "cuda/codegen/generate.h"
#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// The text of a synchronised program and how to launch it. Each operation is one case.
Generated print_cuda(const Program& program);

/// A program without roles as CUDA C++.
struct ThreadText {
    std::string includes, functions;  ///< device functions that it calls
    std::string statements;           ///< with the places of buffers, as constants
};
ThreadText print_threads(const Program& program);

}  // namespace tilewright::cuda::schedule
