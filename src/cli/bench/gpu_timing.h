// Timing on a GPU: bursts of launches and the clock rate during them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/measure.h"
#include "tilewright/tensor.h"

namespace tilewright::cli {

/// The clock rate of a GPU's multiprocessors, from NVML if it is installed.
class SmClock {
  public:
    explicit SmClock(Device device);
    /// The present clock rate in MHz; nullopt without NVML.
    std::optional<double> mhz() const;

  private:
    void* handle_ = nullptr;
    int (*read_)(void*, int, unsigned*) = nullptr;
};

/// A variant whose sample is the time of one launch in a burst, after three for warming up. Appends
/// the clock rate under load to `clocks`.
Variant timed_on_gpu(std::string name, std::function<void()> work, Device device,
                     std::shared_ptr<std::vector<double>> clocks = nullptr);

/// The same for replays of a CUDA graph of `calls` executions, which excludes their host time.
Variant timed_in_graph(std::string name, const std::function<void()>& work, int calls,
                       Device device, std::shared_ptr<std::vector<double>> clocks = nullptr);

/// "NVIDIA H200 (sm_90a, 132 multiprocessors)".
std::string gpu_name(Device device);

/// Floating point operations per cycle of all tensor cores for 16-bit dots; 0 if unknown.
double tensor_flops_per_cycle(Device device);

}  // namespace tilewright::cli
