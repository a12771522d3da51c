// Interleaved timing and output of its results.
#include "cli/bench/measure.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench/waiting.h"
#include "cli/progress.h"
#include "cpu/machine.h"
#include "cpu/simd/kernels.h"
#include "run/system_info.h"
#include "tilewright/version.h"

namespace tilewright::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kColumns = 100;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The clock for timing work, in seconds. With one thread it is this process's CPU time, which
/// excludes what other processes do meanwhile.
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
    // Beside other work a short sample is more often undisturbed.
    constexpr double kShort = 0.003;
    if (cpu::num_threads() > 1) least = std::min(least, kShort);
    // The number of repeats is determined in the first sample and kept.
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

std::vector<double> interleave(std::span<const Variant> variants, const Budget& budget,
                               double* waited) {
    const bool by_wall_clock = cpu::num_threads() > 1;
    std::vector<std::vector<Sample>> samples(variants.size());
    Progress progress(budget.label);
    const auto start = Clock::now();
    // Disturbed samples are made up for, within limits.
    const auto enough = [&](int round) {
        const double seconds = seconds_since(start);
        if (round < budget.least_rounds) return false;
        if (round < budget.most_rounds && seconds <= budget.seconds) return false;
        if (round >= 3 * budget.most_rounds || seconds > 3 * budget.seconds) return true;
        return std::all_of(samples.begin(), samples.end(), [&](const auto& of_variant) {
            return std::count_if(of_variant.begin(), of_variant.end(), [](const Sample& sample) {
                       return sample.waited <= kUndisturbed;
                   }) >= std::min(kLeastSamples, round);
        });
    };
    for (int round = 0; !enough(round); ++round) {
        // Progress towards the limit that is farther away.
        progress.update(std::min(seconds_since(start) / std::max(budget.seconds, 1e-9),
                                 static_cast<double>(round) / std::max(budget.least_rounds, 1)));
        for (std::size_t i = 0; i < variants.size(); ++i) {
            const pid_t process = variants[i].process;
            const double before = by_wall_clock ? waited_seconds(process) : 0;
            const auto begin = Clock::now();
            const double seconds = variants[i].sample();
            // A sample may last for many executions.
            const double all = std::max(seconds_since(begin), 1e-9);
            const double after = by_wall_clock ? waited_seconds(process) : 0;
            samples[i].push_back({seconds, std::max(after - before, 0.0) / all});
        }
    }
    std::vector<double> medians;
    double most = 0;
    for (auto& of_variant : samples) {
        std::vector<double> seconds;
        for (const Sample& sample : least_disturbed(std::move(of_variant))) {
            seconds.push_back(sample.seconds);
            most = std::max(most, sample.waited);
        }
        medians.push_back(median(std::move(seconds)));
    }
    if (waited != nullptr) *waited = most;
    return medians;
}

Row& Report::add(Row row) {
    rows_.push_back(std::move(row));
    return rows_.back();
}

void Report::print() {
    const std::span<const Row> rows = std::span<const Row>(rows_).subspan(printed_);
    printed_ = rows_.size();
    if (rows.empty()) return;
    if (completed_) completed_(*this);
    if (out_ == nullptr) return;
    for (const Row& row : rows) {
        if (row.case_name != case_) *out_ << row.case_name << '\n';
        case_ = row.case_name;
        const std::string rate = row.tflops && *row.tflops >= 10
                                     ? fmt::format("{:.1f} TFLOP/s", *row.tflops)
                                 : row.tflops ? fmt::format("{:.1f} GFLOP/s", *row.tflops * 1e3)
                                 : row.gbs    ? fmt::format("{:.1f} GB/s", *row.gbs)
                                              : "";
        std::string line = fmt::format("  {:<8} {:<13} {:>10.3f} ms {:>14}", row.operation,
                                       row.impl, row.ms, rate);
        std::vector<std::string> more;
        if (row.roof) more.push_back(fmt::format("{:3.0f}% of {}", *row.roof * 100, row.roof_name));
        if (row.ratio)
            more.push_back(fmt::format("{:.2f} x {}", *row.ratio, row.baseline.value_or("")));
        if (row.best_ratio)
            more.push_back(fmt::format("{:.2f} of the best{}", *row.best_ratio,
                                       row.best_hints.empty() ? "" : ", " + row.best_hints));
        if (row.waited) more.push_back(fmt::format("waited {:.0f}%", *row.waited * 100));
        if (row.error) more.push_back(fmt::format("error {:.1e}", *row.error));
        if (!row.ok) more.emplace_back("FAILED");
        if (row.sm_mhz) more.push_back(fmt::format("{:.0f} MHz", *row.sm_mhz));
        if (row.sustained) more.push_back(fmt::format("{:.1f} sustained", *row.sustained));
        for (const std::string& part : more) {
            if (line.size() + 2 + part.size() > kColumns) {
                *out_ << line << '\n';
                line = std::string(9, ' ');
            }
            line += "  " + part;
        }
        *out_ << line << '\n';
    }
    out_->flush();
}

std::string to_json(const std::string& device, const std::vector<std::string>& options,
                    std::span<const Row> rows, bool complete,
                    const std::map<std::string, std::string>& peers) {
    const run::SystemInfo host = run::read_system_info();
    utsname system = {};
    uname(&system);
    nlohmann::ordered_json result = {
        {"version", TILEWRIGHT_VERSION},
        {"date", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))},
        {"machine",
         {{"cpu", host.cpu_model},
          {"cores", host.logical_cores},
          {"threads", cpu::num_threads()},
          {"memory_bytes", host.memory_bytes},
          {"kernels", cpu::kernels().name},
          {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)}}},
        {"options", options},
        {"device", device},
        {"complete", complete},
        {"rows", nlohmann::json::array()}};
    if (!peers.empty()) result["peers"] = peers;
    for (const Row& row : rows)
        result["rows"].push_back(
            {{"case", row.case_name},
             {"op", row.operation},
             {"impl", row.impl},
             {"ms", row.ms},
             {"tflops", or_null(row.tflops)},
             {"sustained", or_null(row.sustained)},
             {"tflops_blocks", or_null(row.tflops_blocks)},
             {"gbs", or_null(row.gbs)},
             {"roof", or_null(row.roof)},
             {"roof_name", row.roof ? nlohmann::json(row.roof_name) : nlohmann::json(nullptr)},
             {"sm_mhz", or_null(row.sm_mhz)},
             {"baseline", or_null(row.baseline)},
             {"ratio", or_null(row.ratio)},
             {"best_ratio", or_null(row.best_ratio)},
             {"best_hints",
              row.best_ratio ? nlohmann::json(row.best_hints) : nlohmann::json(nullptr)},
             {"waited", or_null(row.waited)},
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
