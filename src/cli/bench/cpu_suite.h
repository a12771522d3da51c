// The kernels of `tilewright bench cpu`: tile programs as users write them, with plain loops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench/plain_loops.h"
#include "tilewright/run.h"

namespace tilewright::cli {

/// A tile program and a plain loop with the same results.
struct SuiteCase {
    std::string name;  ///< with its sizes; the kernel's own name is that of the plain loop
    Call call;
    std::vector<Tensor> inputs;  ///< of both; an updated input is also the output
    Tensor output, plain_output;
    PlainLoop loop = nullptr;
    std::vector<std::int64_t> sizes = {};
    std::int64_t units = 1;  ///< of the loop, which threads divide
    std::int64_t parts = 4;  ///< of the units, for each thread
    double bytes = 0;        ///< that must be moved; 0: `flops` is what counts
    double flops = 0;
    double tolerance = 0;  ///< relative to the largest result; 0: results are equal
};

/// All cases. Small ones have a few thousand elements, for tests.
std::vector<SuiteCase> cpu_suite(bool small);

/// The cases of each file.
std::vector<SuiteCase> row_cases(bool small);
std::vector<SuiteCase> stencil_cases(bool small);
std::vector<SuiteCase> index_cases(bool small);
std::vector<SuiteCase> product_cases(bool small);

/// A case with its arrays; the loop's `sizes` and `units` remain to be set.
SuiteCase suite_case(std::string name, Call call, PlainLoop loop, std::vector<Tensor> inputs,
                     const TensorType& output);

/// Integers from 0 to below - 1.
Tensor random_indices(Tensor::Dims shape, std::int64_t below, std::uint32_t seed);

}  // namespace tilewright::cli
