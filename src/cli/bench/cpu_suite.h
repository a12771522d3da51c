// The kernels of `tilewright bench cpu`: tile programs, as users write them, beside plain loops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench/plain_loops.h"
#include "tilewright/run.h"

namespace tilewright::cli {

/// A tile program and the plain loop that gives the same results.
struct SuiteCase {
    std::string name;
    Call call;
    std::vector<Tensor> inputs;  ///< of both; an input that is updated is the output, too
    Tensor output, plain_output;
    PlainLoop loop = nullptr;
    std::vector<std::int64_t> sizes = {};
    std::int64_t units = 1;  ///< of the loop, which threads share out, where they may
    bool threads = true;     ///< false: the plain loop runs on one
    double bytes = 0;        ///< that must be moved; 0: `flops` counts
    double flops = 0;
    double tolerance = 0;  ///< of the largest result; 0: results are equal
};

/// All cases. Small ones have a few thousand elements, for tests.
std::vector<SuiteCase> cpu_suite(bool small);

/// Those of their files.
std::vector<SuiteCase> row_cases(bool small);
std::vector<SuiteCase> stencil_cases(bool small);
std::vector<SuiteCase> index_cases(bool small);

/// A case whose arrays are there already: `sizes` and `units` of the loop are left to be filled in.
SuiteCase suite_case(std::string name, Call call, PlainLoop loop, std::vector<Tensor> inputs,
                     const TensorType& output);

}  // namespace tilewright::cli
