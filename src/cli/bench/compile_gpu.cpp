// `tilewright bench compile --device cuda`: first calls and warm calls.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/bench/cases.h"
#include "cli/builtin.h"
#include "cli/softmax.h"
#include "support/check.h"
#include "tilewright/attention.h"
#include "tilewright/norm.h"
#include "tilewright/run.h"

namespace tilewright::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Step {
    std::string name;
    std::function<void()> call;
};

/// The smallest calls that use the different kernels.
std::vector<Step> steps(const BenchOptions& options) {
    const std::int64_t head_dim = options.head_dim.value_or(128);
    const Tensor x = random_values(options.dtype, {1, 1, 256, head_dim}, 1).to(options.device);
    const Tensor rows = random_values(options.dtype, {64, 8192}, 2).to(options.device),
                 weight = random_values(options.dtype, {8192}, 3).to(options.device);
    std::vector<Step> result;
    const auto add_attention = [&](const std::string& name, const AttentionOptions& attention_) {
        const auto saved = std::make_shared<AttentionOutput>();
        result.push_back({"attention, " + name, [=] { *saved = attention(x, x, x, attention_); }});
        result.push_back({"attention_backward, " + name,
                          [=] { attention_backward(x, x, x, *saved, x, attention_); }});
    };
    AttentionOptions causal;
    causal.causal = true;
    causal.deterministic = options.deterministic;
    add_attention("causal", causal);
    // As autodiff frameworks call it: the backward pass compiles while the forward pass does.
    AttentionOptions full;
    full.deterministic = options.deterministic;
    full.gradient = true;
    add_attention("no mask, gradient announced", full);
    AttentionOptions mod = causal;
    mod.score_mod = [](auto s, auto, auto, auto q, auto kv) { return s + (q - kv) * 0.125; };
    add_attention("causal, score mod", mod);
    causal.engine = "tiles";
    add_attention("causal, tile programs", causal);
    mod.engine = "tiles";
    add_attention("causal, score mod, tile programs", mod);
    const auto saved = std::make_shared<NormOutput>();
    result.push_back({"rms_norm", [=] { *saved = rms_norm(rows, weight); }});
    result.push_back({"rms_norm_backward", [=] { rms_norm_backward(*saved, weight, rows); }});
    return result;
}

Row row(const std::string& name, const char* operation, double seconds) {
    Row result;
    result.case_name = name;
    result.operation = operation;
    result.impl = "tilewright";
    result.ms = seconds * 1e3;
    return result;
}

/// The first calls of this process, and then the host time of queueing each.
std::vector<Row> first_calls(const BenchOptions& options) {
    std::vector<Row> rows;
    // The context, the libraries and the first copy are not counted.
    const std::vector<Step> all = steps(options);
    const Call soft = softmax(64, true);
    soft(Tensor::zeros(f32, {8, 64}, options.device));
    synchronize(options.device);
    const auto timed = [&](const Step& step, int count) {
        const auto start = Clock::now();
        for (int i = 0; i < count; ++i) step.call();
        if (count == 1) synchronize(options.device);
        return std::chrono::duration<double>(Clock::now() - start).count() / count;
    };
    for (const Step& step : all) rows.push_back(row(step.name, "first", timed(step, 1)));
    constexpr int kQueued = 100;
    for (const Step& step : all) {
        timed(step, 3);
        synchronize(options.device);
        rows.push_back(row(step.name, "queue", timed(step, kQueued)));
        synchronize(options.device);
    }
    return rows;
}

/// What a new process measures with a cache folder.
std::vector<Row> in_a_process(const BenchOptions& options, const std::string& folder,
                              const char* operation, bool warm) {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    const std::string file = folder + "/rows.json";
    const std::string command = fmt::format(
        "TILEWRIGHT_CACHE_DIR='{}' '{}' bench compile --once --device {} --dtype {} --head-dim {} "
        "{} --json '{}' > /dev/null",
        folder, self.string(), to_string(options.device), name(options.dtype),
        options.head_dim.value_or(128), options.deterministic ? "" : "--no-deterministic", file);
    if (std::system(command.c_str()) != 0)
        user_error("bench", "expected `{}` to run but it failed", command);
    std::FILE* const in = std::fopen(file.c_str(), "r");
    if (in == nullptr) user_error("bench", "expected rows in {} but found none", file);
    const nlohmann::json measured = nlohmann::json::parse(in);
    std::fclose(in);
    std::vector<Row> rows;
    for (const nlohmann::json& each : measured["rows"]) {
        if ((each["op"] == "queue") != warm) continue;
        rows.push_back(row(each["case"], operation, each["ms"].get<double>() * 1e-3));
    }
    return rows;
}

}  // namespace

void bench_compile_gpu(const BenchOptions& options, Report& report) {
    if (options.once) {
        for (Row& each : first_calls(options)) report.add(std::move(each));
        return;
    }
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / fmt::format("tilewright_bench_{}", getpid());
    std::filesystem::create_directories(folder);
    const auto append = [&](const char* operation, bool warm) {
        for (Row& each : in_a_process(options, folder.string(), operation, warm)) {
            report.add(std::move(each));
        }
    };
    append("cold", false);
    append("disk", false);
    append("queue", true);
    std::filesystem::remove_all(folder);
}

}  // namespace tilewright::cli
