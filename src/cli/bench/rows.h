// What benchmarks on CPUs share: timing a program with its roof and its baseline, and their rows.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/bench/cases.h"
#include "cli/bench/measure.h"
#include "cli/bench/roofs.h"
#include "support/array.h"

namespace tilewright::cli {

/// Work to measure with its roof and, possibly, its baseline.
struct Measured {
    std::string case_name, operation;
    std::function<void()> work;
    double amount = 0;       ///< floating point operations, or bytes
    bool bandwidth = false;  ///< amount counts bytes
    Roof roof;
    std::optional<Variant> baseline;
    std::string impl = "tilewright";
};

/// Times all variants in turn and appends our row and the baseline's; returns ours.
Row& add_rows(const Measured& m, const BenchOptions& options, Report& report);

/// The peak of multiply-adds for elements of `dtype`.
Roof compute_roof(DType dtype);

/// The baseline that --baseline names, torch or xla, for `job` (`prepare` in
/// bench/torch_baseline.py); nothing without the option.
std::optional<Variant> python_variant(const BenchOptions& options, nlohmann::json job);

/// Checks our result against the exact one: the error allowed is that of `plain`, computed with
/// `dtype` in the plain order (support/accuracy.h).
void set_error(Row& row, const Tensor& ours, const Array& exact, const Array& plain, DType dtype,
               const Array& sizes = {});

}  // namespace tilewright::cli
