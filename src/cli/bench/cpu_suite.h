// The kernels of `tilewright bench cpu`: tile programs as users write them, with plain loops.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/plain_loops.h"
#include "tilewright/run.h"

namespace tilewright::cli {

/// Makes an input.
using SuiteInput = std::function<Tensor()>;

/// A tile program and a plain loop with the same results.
struct SuiteCase {
    std::string name;  ///< with its sizes; the kernel's own name is that of the plain loop
    Call call;
    PlainLoop loop = nullptr;
    std::vector<SuiteInput> make_inputs;
    TensorType output_type;
    std::optional<std::size_t> updated = {};  ///< the input that is also the output
    /// From `prepare`; the inputs are those of both.
    std::vector<Tensor> inputs = {};
    Tensor output = {}, plain_output = {};
    std::vector<std::int64_t> sizes = {};
    std::int64_t units = 1;  ///< of the loop, which threads divide
    std::int64_t parts = 4;  ///< of the units, for each thread
    double bytes = 0;        ///< that must be moved; 0: `flops` is what counts
    double flops = 0;
    double tolerance = 0;  ///< relative to the largest result; 0: results are equal

    /// Makes the arrays.
    void prepare();
};

/// All cases. Small ones have a few thousand elements, for tests.
std::vector<SuiteCase> cpu_suite(bool small);

/// The cases of each file.
std::vector<SuiteCase> row_cases(bool small);
std::vector<SuiteCase> stencil_cases(bool small);
std::vector<SuiteCase> index_cases(bool small);
std::vector<SuiteCase> product_cases(bool small);

/// A case without its arrays; the loop's `sizes` and `units` remain to be set.
SuiteCase suite_case(std::string name, Call call, PlainLoop loop, std::vector<SuiteInput> inputs,
                     const TensorType& output);

SuiteInput random_input(DType dtype, Tensor::Dims shape, std::uint32_t seed);
SuiteInput zero_input(DType dtype, Tensor::Dims shape);
/// Integers from 0 to below - 1.
SuiteInput index_input(Tensor::Dims shape, std::int64_t below, std::uint32_t seed);

}  // namespace tilewright::cli
