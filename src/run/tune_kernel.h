// Chooses by measurement how a kernel is generated for a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cuda/codegen/generate.h"
#include "ir/function.h"
#include "ir/launch.h"
#include "run/replay.h"
#include "tilewright/run.h"
#include "tilewright/tensor.h"

namespace tilewright::run {

/// Are kernels with products tuned? TILEWRIGHT_AUTOTUNE=1, or what `tune_kernels` said last.
bool tunes_kernels();
void tune_kernels(bool on);

/// Can the autotuner choose how a kernel is generated: does it have a product that does not depend
/// on another one?
bool is_tunable(const ir::Function& kernel);

/// One way to generate a kernel.
struct KernelChoice {
    std::optional<cuda::schedule::Choice> product = {};  ///< by wgmma
    int num_warps = 0, num_stages = 0;                   ///< otherwise; 0: the compiler chooses
    bool operator==(const KernelChoice&) const = default;
};

/// What the time of a call depends on besides the kernel: strides, and extents that its text leaves
/// open, rounded up to powers of two.
std::vector<std::int64_t> timing_key(const ir::Function& kernel, const ir::Arguments& arguments);

/// Arguments with copies of what the kernel writes, so that it may run any number of times.
class TrialArguments {
  public:
    /// `kernel` has no alias groups.
    TrialArguments(const ir::Function& kernel, const ir::Arguments& arguments, int device);
    const ir::Arguments& arguments() const { return arguments_; }

  private:
    ir::Arguments arguments_;
    std::vector<Tensor> copies_;
};

/// Times of candidates. Each one alternates with the first, because a GPU's clock changes with what
/// it did before by more than candidates differ.
class TrialTimes {
  public:
    explicit TrialTimes(Device device) : device_(device) {}
    /// Seconds of a launch of `work`, as if the first one had always taken as long as at first.
    double seconds(const std::function<void()>& work);

  private:
    Device device_;
    std::optional<Replay> first_;
    int calls_ = 1;  ///< of a replay
    double first_seconds_ = 0;
};

/// Why a kernel cannot be measured; empty where it can.
std::string why_not_measurable(const ir::Function& kernel);

/// The fastest way to generate a kernel, from the disk cache or by `seconds`. `prepare` is called
/// with all candidates before they are measured.
KernelChoice fastest_choice(const ir::Function& kernel, const cuda::Target& target,
                            const std::vector<std::int64_t>& key, const Device& device,
                            const std::function<void(const std::vector<KernelChoice>&)>& prepare,
                            const std::function<double(const KernelChoice&)>& seconds);

}  // namespace tilewright::run
