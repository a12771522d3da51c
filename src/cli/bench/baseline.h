// Baselines from other libraries: PyTorch and XLA in a Python helper process, oneDNN loaded at run
// time.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/measure.h"

namespace tilewright::cli {

/// A baseline of a case, or why it has none.
struct Baseline {
    std::optional<Variant> variant;
    std::string refusal;
    bool for_all_cases = false;  ///< there is no checkout or no Python with the framework
};
/// A variant called `name` that runs `job` in a helper process, which lives as long as the variant:
/// bench/xla_baseline.py if the name is "xla", "pallas" or "pallas-mgpu", else
/// bench/torch_baseline.py. The interpreter is TILEWRIGHT_PYTHON, else `.venv/bin/python` of the
/// working directory or the checkout, else python3.
Baseline try_python_baseline(const nlohmann::json& job, const std::string& name);
/// The same; UserError if the baseline does not run.
Variant python_baseline(const nlohmann::json& job, const std::string& name);

/// The checkout that has the helpers in bench/: the nearest folder above the program, else the
/// current one. UserError if there is none, as for an installed program.
std::filesystem::path baseline_checkout(const std::string& name,
                                        const std::filesystem::path& program,
                                        const std::filesystem::path& current);

/// Why this program finds no such checkout for a baseline; empty: it finds one.
std::string no_baseline_checkout(const std::string& name);

/// Starts PyTorch helpers for these jobs in parallel and waits until each is ready or has failed;
/// the next `python_baseline` of a job takes its helper.
void prepare_torch_baselines(const std::vector<nlohmann::json>& jobs);

/// A job for a helper process, in the name of a library.
struct HelperJob {
    std::string name;
    nlohmann::json job;
};
struct HelperAnswer {
    std::string text;  ///< "ready", or "error: why"; empty if the process has ended
    Variant variant;   ///< of that name, which runs the job if it is ready
};
/// Gives the jobs to processes that run `script` of bench/, one for each name, and waits for their
/// answers. A process is used again by the next job of the same name once the variant of the last
/// one is gone. UserError without a checkout.
std::vector<HelperAnswer> run_helpers(const std::string& script,
                                      const std::vector<HelperJob>& jobs);

/// The f32 matrix product c[m, n] = a[m, k] b[k, n] with oneDNN's sgemm. UserError if libdnnl is
/// missing.
Variant onednn_matmul(std::int64_t m, std::int64_t n, std::int64_t k);
/// The same from i8 to i32.
Variant onednn_matmul_s8(std::int64_t m, std::int64_t n, std::int64_t k);

}  // namespace tilewright::cli
