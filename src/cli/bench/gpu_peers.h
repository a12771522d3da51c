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

/// Another implementation that is timed in the same rounds.
struct GpuPeer {
    std::string name;
    nlohmann::json job;             ///< what its Python helper runs
    double amount = 0, blocks = 0;  ///< as those of the work, where its own are others; else 0
};

/// Work on the GPU and what to compare it with.
struct GpuWork {
    std::string case_name, operation;
    std::function<void()> work;
    double amount = 0;       ///< floating point operations, or bytes
    bool bandwidth = false;  ///< amount counts bytes
    double blocks = 0;       ///< the same counted by whole blocks of the mask, or 0
    std::vector<GpuPeer> peers = {};
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
    /// Whether to compare with a peer: by default those of PyTorch; XLA, Pallas, Triton,
    /// FlashAttention-3 and -4 and torch.compile only by name.
    bool wants(const std::string& peer) const;
    const BenchOptions& options() const { return options_; }

  private:
    Variant timed(const char* name, const std::function<void()>& work,
                  std::shared_ptr<std::vector<double>> clocks) const;
    /// Adds a peer; one that cannot run and was not asked for by name is left out, with a message.
    void add_peer(const GpuPeer& peer, std::vector<Variant>& variants);

    BenchOptions options_;
    std::map<std::pair<Tensor::Dims, std::uint32_t>, Tensor> random_;
    Report& report_;
    bool no_torch_ = false;
};

}  // namespace tilewright::cli
