// Timing on a GPU: bursts of launches, and the clock they ran at.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/measure.h"
#include "tilewright/tensor.h"

namespace tilewright::cli {

/// The clock of a GPU's multiprocessors, from NVML where it is installed.
class SmClock {
  public:
    explicit SmClock(Device device);
    /// MHz now; nothing without NVML.
    std::optional<double> mhz() const;

  private:
    void* handle_ = nullptr;
    int (*read_)(void*, int, unsigned*) = nullptr;
};

/// A variant whose sample is a burst of launches after three that warm up: seconds of one. The
/// clock under load is appended to `clocks`.
Variant timed_on_gpu(std::string name, std::function<void()> work, Device device,
                     std::shared_ptr<std::vector<double>> clocks = nullptr);

/// The same of replays of a CUDA graph of `calls` executions, so without what they cost the host.
Variant timed_in_graph(std::string name, const std::function<void()>& work, int calls,
                       Device device, std::shared_ptr<std::vector<double>> clocks = nullptr);

/// "NVIDIA H200 (sm_90a, 132 multiprocessors)".
std::string gpu_name(Device device);

/// Floating point operations of 16-bit dots that the tensor cores do in a cycle, all together; 0
/// where it is not known.
double tensor_flops_per_cycle(Device device);

}  // namespace tilewright::cli
