// The scheduled form as CUDA C++.
#pragma once

#include <string>

#include "cuda/codegen/generate.h"
#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// The text of a synchronised program and how to launch it. Each operation is one case.
Generated print_cuda(const Program& program);

/// What a program of text includes, and the device functions that it calls.
std::string print_includes(const Program& program);
std::string print_functions(const Program& program);

/// The places of a program of text, as constants, and its statements.
std::string print_statements(const Program& program);

}  // namespace tilewright::cuda::schedule
