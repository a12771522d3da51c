// What generating and compiling kernels costs, without a GPU.
#pragma once

#include "cli/bench/cases.h"

namespace tilewright::cli {

/// Processor time of generating and compiling the built-in programs for a GPU, which need not be
/// there.
void bench_compile_kernels(const BenchOptions& options, Report& report);

}  // namespace tilewright::cli
