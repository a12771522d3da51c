// Timing of bursts of launches, and the GPU's clock from NVML.
#include "cli/bench/gpu_timing.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cuda/runtime/device.h"
#include "run/replay.h"
#include "tilewright/run.h"

namespace tilewright::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

SmClock::SmClock(Device device) {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto start = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto find = reinterpret_cast<int (*)(unsigned, void**)>(
        dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
    read_ =
        reinterpret_cast<int (*)(void*, int, unsigned*)>(dlsym(library, "nvmlDeviceGetClockInfo"));
    const bool usable = start != nullptr && find != nullptr && read_ != nullptr && start() == 0 &&
                        find(static_cast<unsigned>(device.index), &handle_) == 0;
    if (!usable) handle_ = nullptr;
}

std::optional<double> SmClock::mhz() const {
    constexpr int kClockOfMultiprocessors = 1;
    unsigned value = 0;
    if (handle_ == nullptr || read_(handle_, kClockOfMultiprocessors, &value) != 0) return {};
    return value;
}

Variant timed_on_gpu(std::string name, std::function<void()> work, Device device,
                     std::shared_ptr<std::vector<double>> clocks) {
    constexpr int kWarmUp = 3;
    constexpr double kSeconds = 0.03;
    auto repeats = std::make_shared<int>(0);
    auto clock = std::make_shared<SmClock>(device);
    return {std::move(name), [=, work = std::move(work)] {
                const auto burst = [&](int count) {
                    const auto start = Clock::now();
                    for (int i = 0; i < count; ++i) work();
                    const std::optional<double> mhz = clock->mhz();
                    synchronize(device);
                    if (clocks && mhz) clocks->push_back(*mhz);
                    return seconds_since(start) / count;
                };
                burst(*repeats == 0 ? 1 : kWarmUp);  // the first one compiles
                if (*repeats == 0) {
                    *repeats = static_cast<int>(std::clamp(kSeconds / burst(kWarmUp), 3.0, 500.0));
                }
                return burst(*repeats);
            }};
}

Variant timed_in_graph(std::string name, const std::function<void()>& work, int calls,
                       Device device, std::shared_ptr<std::vector<double>> clocks) {
    constexpr double kSeconds = 0.03;
    auto graph = std::make_shared<run::Replay>(work, calls, device);
    auto repeats = std::make_shared<int>(0);
    auto clock = std::make_shared<SmClock>(device);
    return {std::move(name), [=] {
                const auto burst = [&](int count) {
                    const auto start = Clock::now();
                    for (int i = 0; i < count; ++i) graph->launch();
                    const std::optional<double> mhz = clock->mhz();
                    graph->wait();
                    if (clocks && mhz) clocks->push_back(*mhz);
                    return seconds_since(start) / (count * calls);
                };
                burst(1);
                if (*repeats == 0) {
                    *repeats =
                        static_cast<int>(std::clamp(kSeconds / (burst(1) * calls), 2.0, 500.0));
                }
                return burst(*repeats);
            }};
}

std::string gpu_name(Device device) {
    const cuda::DeviceInfo& info = cuda::device_info(device.index);
    return fmt::format("{} ({}, {} multiprocessors)", info.name, info.arch(), info.multiprocessors);
}

double tensor_flops_per_cycle(Device device) {
    const cuda::DeviceInfo& info = cuda::device_info(device.index);
    const double each = info.major == 9                      ? 4096
                        : info.major == 8 && info.minor == 0 ? 2048
                        : info.major == 8                    ? 1024
                                                             : 0;
    return each * info.multiprocessors;
}

}  // namespace tilewright::cli
