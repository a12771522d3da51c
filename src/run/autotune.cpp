// The autotuner: measures candidates once per device and signature, and keeps choices on disk.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "cpu/machine.h"
#include "cpu/simd/kernels.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/stream.h"
#include "run/call_state.h"
#include "run/fastest.h"
#include "run/tuning.h"
#include "support/check.h"
#include "support/debug_log.h"
#include "support/disk_cache.h"
#include "support/memo.h"
#include "tilewright/run.h"
#include "tilewright/version.h"

namespace tilewright {

namespace {

/// Seconds of a clock for work on a device. With one thread on a CPU it is this process's CPU time,
/// which excludes what other processes do meanwhile.
double work_seconds(bool gpu) {
    std::timespec time{};
    // Not std::clock, which counts microseconds: small kernels take few of them.
    if (!gpu && cpu::num_threads() == 1 && ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0)
        return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::string cpu_model() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        const auto colon = line.find(": ");
        if (line.starts_with("model name") && colon != std::string::npos)
            return line.substr(colon + 2);
    }
    return "unknown CPU";
}

/// What timings hold for: this version on a model of CPU, with its threads and kernels, or GPU.
std::string describe(const Device& device) {
    if (device.kind == Device::Kind::cpu) {
        return fmt::format("{} x{}, {}, version {}", cpu_model(),
                           std::thread::hardware_concurrency(), run::machine_state(device),
                           version());
    }
    const cuda::DeviceInfo& info = cuda::device_info(device.index);
    return fmt::format("{} {} x{}, version {}", info.name, info.arch(), info.multiprocessors,
                       version());
}

std::string signature_of(const std::vector<Tensor>& inputs) {
    std::string text = to_string(detail::device_of(inputs));
    for (const Tensor& input : inputs) text += fmt::format(";{}", input.type_name());
    return text;
}

/// Copies inputs that a measurement may overwrite.
std::vector<Tensor> measurable(const Call& call, std::vector<Tensor> inputs) {
    for (const Alias& alias : call.options().aliases) {
        Tensor& input = inputs.at(alias.input);
        input = input.clone();
    }
    return inputs;
}

}  // namespace

namespace run {

std::string machine_state(const Device& device) {
    if (device.kind != Device::Kind::cpu) return to_string(device);
    return fmt::format("{} threads, {} kernels", cpu::num_threads(), cpu::kernels().name);
}

double warm_seconds(const Device& device, const std::function<void()>& function) {
    constexpr int kRuns = 7;
    constexpr double kBudget = 0.2, kBurst = 0.005;  // seconds
    const bool gpu = device.kind == Device::Kind::cuda;
    if (gpu) cuda::expect_no_capture("autotune", "to wait for what it measures");
    const auto burst = [&](int count) {
        const double start = work_seconds(gpu);
        for (int i = 0; i < count; ++i) function();
        if (gpu) synchronize(device);
        return (work_seconds(gpu) - start) / count;
    };
    burst(1);
    const int count = gpu ? static_cast<int>(std::clamp(kBurst / burst(3), 1.0, 200.0)) : 1;
    double best = std::numeric_limits<double>::infinity(), spent = 0;
    for (int run = 0; run < kRuns && spent < kBudget; ++run) {
        const double own = burst(count);
        spent += own * count;
        best = std::min(best, own);
    }
    return best;
}

std::size_t fastest(const std::vector<Config>& configs, const std::string& key,
                    const Device& device, const std::function<double(const Config&)>& seconds) {
    // The first line is what `tilewright cache list` shows.
    std::string entry = fmt::format("{}\n{}", key, describe(device));
    for (const Config& config : configs) entry += fmt::format("\n{}", config.to_string());
    const std::string what = key.substr(0, key.find('\n'));
    const DiskCache disk(cache_root() / "autotune");
    if (const auto text = disk.get(entry)) {
        // The choice, followed by the table of timings that it is based on.
        const std::string chosen = text->substr(0, text->find('\n'));
        const auto found = std::find_if(configs.begin(), configs.end(), [&](const Config& config) {
            return config.to_string() == chosen;
        });
        if (found != configs.end()) {
            const std::size_t end = std::min(chosen.size() + 1, text->size());
            tell_of_tuning({what, chosen, text->substr(end), true});
            return static_cast<std::size_t>(found - configs.begin());
        }
        disk.drop(entry);
    }
    std::size_t best = configs.size();
    std::vector<Trial> trials;
    std::string first_error;
    TuningBar bar(what.substr(0, what.find(' ')), configs.size());
    for (std::size_t c = 0; c < configs.size(); ++c) {
        bar.update(c);
        trials.push_back({configs[c]});
        try {
            trials[c].seconds = seconds(configs[c]);
            if (best == configs.size() || trials[c].seconds < trials[best].seconds) best = c;
        } catch (const UserError& error) {
            trials[c].error = error.what();
            if (first_error.empty())
                first_error = fmt::format("{}: {}", configs[c].to_string(), error.what());
        }
    }
    if (best == configs.size()) {
        user_error("autotune", "expected one of {} configs to run but none does; {}",
                   configs.size(), first_error);
    }
    const Tuning tuning{what, configs[best].to_string(), table_of(trials)};
    disk.put(entry, tuning.chosen + '\n' + tuning.table);
    for (std::size_t begin = 0; debug_log_on() && begin < tuning.table.size();) {
        const std::size_t end = tuning.table.find('\n', begin);
        debug_log("autotune", "{}", tuning.table.substr(begin, end - begin));
        begin = end + 1;
    }
    tell_of_tuning(tuning);
    return best;
}

}  // namespace run

std::int64_t Config::operator[](const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) {
        user_error("config", "expected a name among {} but got `{}`", to_string(), name);
    }
    return found->second;
}

std::string Config::to_string() const {
    std::string text;
    for (const auto& [name, value] : values_) {
        text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, value);
    }
    return text;
}

struct Tuned::State {
    struct Choice {
        std::size_t config;
        Call call;
    };

    std::vector<Config> configs;
    std::string key;
    std::function<Call(const Config&)> make;
    std::mutex mutex;
    /// By signature and state of the machine. Evicted choices are on disk and not measured again.
    Memo<std::string, Choice> choices{"calls of autotuners", 256};
    int num_measured = 0;

    Choice choice(const std::vector<Tensor>& inputs) {
        const std::string signature = signature_of(inputs);
        const Device device = detail::device_of(inputs);
        const std::scoped_lock lock(mutex);
        const std::string entry = fmt::format("{} {}", signature, run::machine_state(device));
        if (std::optional<Choice> known = choices.find(entry)) return *std::move(known);
        std::map<std::string, Call> candidates;  // measured ones are already compiled
        const auto seconds = [&](const Config& config) {
            const Call& call = candidates.emplace(config.to_string(), make(config)).first->second;
            const std::vector<Tensor> arguments = measurable(call, inputs);
            const double best = run::warm_seconds(device, [&] { call.run(arguments); });
            ++num_measured;
            return best;
        };
        const std::size_t config =
            run::fastest(configs, fmt::format("{} {}", key, signature), device, seconds);
        const auto measured = candidates.find(configs[config].to_string());
        return choices.put(entry, {config, measured == candidates.end() ? make(configs[config])
                                                                        : measured->second});
    }
};

Tuned::Tuned(std::vector<Config> configs, std::string key, std::function<Call(const Config&)> make)
    : state_(std::make_shared<State>()) {
    if (configs.empty()) user_error("autotune", "expected at least one config but got none");
    state_->configs = std::move(configs);
    state_->key = std::move(key);
    state_->make = std::move(make);
}

Call Tuned::best(const std::vector<Tensor>& inputs) const {
    return state_->choice(inputs).call;
}

const Config& Tuned::best_config(const std::vector<Tensor>& inputs) const {
    return state_->configs[state_->choice(inputs).config];
}

int Tuned::num_measured() const {
    const std::scoped_lock lock(state_->mutex);
    return state_->num_measured;
}

Autotuner autotune(std::vector<Config> configs, std::string key) {
    return Autotuner(std::move(configs), std::move(key));
}

}  // namespace tilewright
