// Waiting times from Linux's scheduler.
#include "cli/bench/waiting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>

namespace tilewright::cli {

double waited_seconds(pid_t process) {
    const std::string folder =
        process == 0 ? "/proc/self/task" : fmt::format("/proc/{}/task", process);
    double nanoseconds = 0;
    std::error_code error;
    for (std::filesystem::directory_iterator thread(folder, error), end; !error && thread != end;
         thread.increment(error)) {
        // Time on a core, time waiting for one, time slices.
        std::ifstream file(thread->path() / "schedstat");
        std::uint64_t ran = 0, waited = 0;
        if (file >> ran >> waited) nanoseconds += static_cast<double>(waited);
    }
    return nanoseconds * 1e-9;
}

std::vector<Sample> least_disturbed(std::vector<Sample> samples) {
    std::stable_sort(samples.begin(), samples.end(),
                     [](const Sample& a, const Sample& b) { return a.waited < b.waited; });
    const auto first_disturbed =
        std::find_if(samples.begin(), samples.end(),
                     [](const Sample& sample) { return sample.waited > kUndisturbed; });
    const auto least = std::max<std::ptrdiff_t>(kLeastSamples, std::ssize(samples) / 4);
    const auto kept = std::max(first_disturbed - samples.begin(), least);
    if (kept < std::ssize(samples)) samples.resize(static_cast<std::size_t>(kept));
    return samples;
}

}  // namespace tilewright::cli
