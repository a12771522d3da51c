// Timing on a GPU together with peers, shared by the cases of `bench --device cuda`.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/cases.h"

namespace tilewright::cli {

/// Work on the GPU and what to compare it with.
struct GpuWork {
    std::string case_name, operation;
    std::function<void()> work;
    double amount = 0;       ///< floating point operations, or bytes
    bool bandwidth = false;  ///< amount counts bytes
    double blocks = 0;       ///< the same counted by whole blocks of the mask, or 0
    /// For each peer, the job that its Python helper runs.
    std::vector<std::pair<std::string, nlohmann::json>> peers = {};
    /// A copy of an array, if that is the roof, and the number of bytes that it reads and writes.
    std::function<void()> copy = {};
    double copied = 0;
};

class GpuBench {
  public:
    /// Our own kernels, called through tilewright.torch.
    static constexpr const char* kThroughTorch = "through torch";

    GpuBench(const BenchOptions& options, Report& report) : options_(options), report_(report) {}

    /// Random values, made once for a shape and seed. With four dimensions all batches are equal,
    /// because generating the values takes longer than what is timed.
    Tensor random(const Tensor::Dims& shape, std::uint32_t seed);
    /// Times the work and its peers in turn; our row is the last of those reported.
    Row& measure(const GpuWork& work);
    /// The job that all peers of these options share.
    nlohmann::json job(const char* operation, bool backward) const;
    /// Whether to compare with a peer: by default those of PyTorch; XLA, FlashAttention-4 and
    /// torch.compile only by name.
    bool wants(const std::string& peer) const;
    const BenchOptions& options() const { return options_; }

  private:
    Variant timed(const char* name, const std::function<void()>& work,
                  std::shared_ptr<std::vector<double>> clocks) const;
    /// Adds a peer; one that cannot run and was not asked for by name is left out, with a message.
    void add_peer(const std::string& name, const nlohmann::json& job,
                  std::vector<Variant>& variants);

    BenchOptions options_;
    std::map<std::pair<Tensor::Dims, std::uint32_t>, Tensor> random_;
    Report& report_;
    bool no_torch_ = false;
};

}  // namespace tilewright::cli
