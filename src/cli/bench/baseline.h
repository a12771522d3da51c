// Baselines of other libraries: PyTorch and XLA in a Python helper process, oneDNN opened at run
// time.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/bench/measure.h"

namespace tilewright::cli {

/// A variant that runs `job` in a helper process, which lives as long as the variant, and goes by
/// `name`: bench/xla_baseline.py when that is "xla", else bench/torch_baseline.py. The interpreter
/// is `.venv/bin/python` of the working directory or of the checkout, or TILEWRIGHT_PYTHON.
/// UserError when it cannot be started or lacks the framework, and without a checkout.
Variant python_baseline(const nlohmann::json& job, const std::string& name);

/// The checkout with the helpers in its tools/: the nearest folder above the program, else the
/// current one. UserError where there is none, as for an installed program.
std::filesystem::path baseline_checkout(const std::string& name,
                                        const std::filesystem::path& program,
                                        const std::filesystem::path& current);

/// Starts PyTorch helpers of these jobs side by side and waits until each is ready or has failed;
/// the next `python_baseline` of a job takes its helper.
void prepare_torch_baselines(const std::vector<nlohmann::json>& jobs);

/// f32 matrix product c[m, n] = a[m, k] b[k, n] by oneDNN's sgemm. UserError when libdnnl is
/// missing.
Variant onednn_matmul(std::int64_t m, std::int64_t n, std::int64_t k);
/// The same of i8 to i32.
Variant onednn_matmul_s8(std::int64_t m, std::int64_t n, std::int64_t k);

}  // namespace tilewright::cli
