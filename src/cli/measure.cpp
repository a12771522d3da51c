// Interleaved timing and its output.
#include "cli/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/progress.h"
#include "cpu/machine.h"

namespace tilewright::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// What work is timed by, in seconds. On one thread it is this process's CPU time, which does not
/// count what other processes do meanwhile.
double work_seconds() {
    if (cpu::num_threads() == 1) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

template <typename T>
nlohmann::json or_null(const std::optional<T>& value) {
    return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

}  // namespace

Variant timed(std::string name, std::function<void()> work, double least) {
    // The number of repeats is found in the first sample, and kept.
    auto repeats = std::make_shared<int>(0);
    return {std::move(name), [work = std::move(work), repeats, least] {
                if (*repeats == 0) {
                    work();
                    const double start = work_seconds();
                    work();
                    const double once = std::max(work_seconds() - start, 1e-9);
                    *repeats = static_cast<int>(std::clamp(least / once + 1, 1.0, 1e6));
                }
                const double start = work_seconds();
                for (int i = 0; i < *repeats; ++i) work();
                return (work_seconds() - start) / *repeats;
            }};
}

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::vector<double> interleave(std::span<const Variant> variants, const Budget& budget) {
    std::vector<std::vector<double>> samples(variants.size());
    Progress progress(budget.label);
    const auto start = Clock::now();
    for (int round = 0; round < budget.most_rounds; ++round) {
        const double seconds = seconds_since(start);
        if (round >= budget.least_rounds && seconds > budget.seconds) break;
        // Whichever of the two limits is farther away.
        progress.update(std::min(seconds / std::max(budget.seconds, 1e-9),
                                 static_cast<double>(round) / std::max(budget.least_rounds, 1)));
        for (std::size_t i = 0; i < variants.size(); ++i)
            samples[i].push_back(variants[i].sample());
    }
    std::vector<double> medians;
    for (auto& values : samples) medians.push_back(median(std::move(values)));
    return medians;
}

Row& Report::add(Row row) {
    rows_.push_back(std::move(row));
    return rows_.back();
}

void Report::print() {
    const std::span<const Row> rows = std::span<const Row>(rows_).subspan(printed_);
    const bool first = printed_ == 0;
    printed_ = rows_.size();
    if (out_ == nullptr || rows.empty()) return;
    for (const Row& row : rows) width_ = std::max(width_, row.case_name.size());
    if (first) {
        *out_ << fmt::format("{:<{}}  {:<9} {:<12} {:>10} {:>15} {:>7} {:>16} {:>9}\n", "case",
                             width_, "operation", "impl", "ms", "rate", "% roof", "x baseline",
                             "error");
    }
    for (const Row& row : rows) {
        const std::string rate = row.tflops && *row.tflops >= 10
                                     ? fmt::format("{:.1f} TFLOP/s", *row.tflops)
                                 : row.tflops ? fmt::format("{:.1f} GFLOP/s", *row.tflops * 1e3)
                                 : row.gbs    ? fmt::format("{:.1f} GB/s", *row.gbs)
                                              : "";
        *out_ << fmt::format(
            "{:<{}}  {:<9} {:<12} {:>10.3f} {:>15} {:>7} {:>16} {:>9}{}\n", row.case_name, width_,
            row.operation, row.impl, row.ms, rate,
            row.roof ? fmt::format("{:.0f}", *row.roof * 100) : "",
            row.ratio ? fmt::format("{:.2f} {}", *row.ratio, row.baseline.value_or("")) : "",
            row.error ? fmt::format("{:.1e}", *row.error) : "",
            (row.sm_mhz ? fmt::format("  {:.0f} MHz", *row.sm_mhz) : "") +
                (row.sustained ? fmt::format("  {:.1f} sustained", *row.sustained) : "") +
                (row.ok ? "" : "  FAILED"));
    }
    out_->flush();
}

std::string to_json(const std::string& device, std::span<const Row> rows) {
    nlohmann::ordered_json result = {{"device", device}, {"rows", nlohmann::json::array()}};
    for (const Row& row : rows)
        result["rows"].push_back({{"case", row.case_name},
                                  {"op", row.operation},
                                  {"impl", row.impl},
                                  {"ms", row.ms},
                                  {"tflops", or_null(row.tflops)},
                                  {"sustained", or_null(row.sustained)},
                                  {"tflops_blocks", or_null(row.tflops_blocks)},
                                  {"gbs", or_null(row.gbs)},
                                  {"roof", or_null(row.roof)},
                                  {"sm_mhz", or_null(row.sm_mhz)},
                                  {"baseline", or_null(row.baseline)},
                                  {"ratio", or_null(row.ratio)},
                                  {"error", or_null(row.error)},
                                  {"ok", row.ok}});
    return result.dump(2);
}

std::string device_name() {
    std::ifstream file("/proc/cpuinfo");
    std::string model = "CPU";
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("model name")) {
            model = line.substr(std::min(line.size(), line.find(':') + 2));
            break;
        }
    return fmt::format("{}, {} thread{}", model, cpu::num_threads(),
                       cpu::num_threads() == 1 ? "" : "s");
}

}  // namespace tilewright::cli
