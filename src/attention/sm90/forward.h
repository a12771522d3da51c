// Attention forward on Hopper: check the inputs, choose a configuration, generate the kernel,
// launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "attention/sm90/problem.h"

namespace tilewright::attn::sm90 {

/// What a caller of the forward gives; the mask's tiles are of queries.
struct ForwardInputs : ProblemInputs {
    cuda::DeviceAddress row_max = 0;  ///< f32 (B, H, Lq) contiguous, written: largest score; or 0
    bool exact_maximum = false;       ///< of every block, instead of the speculative one
};

/// Bytes of workspace without segments and packed sequences.
inline constexpr std::size_t kForwardWorkspaceBytes = 16;

/// The problem, checked; every quantity that configuration and kernel depend on.
struct ForwardDesc : ProblemDesc {
    bool row_maximum = false;
    bool exact_maximum = false;  ///< row_maximum needs it
    bool positive_scale = true;  ///< else scores are scaled before the softmax, not in its exponent
};

/// How the kernel is built: one cubin per ForwardConfig and what ForwardDesc says beside sizes.
struct ForwardConfig {
    int warpgroups = 2;     ///< consumers of 64 query rows each, 1 to 3
    int block_n = 128;      ///< keys of a block, a multiple of 16
    int stages = 2;         ///< buffers of K and of V
    int query_buffers = 2;  ///< 2: the next tile starts before this one's results are stored
    int group = 1;     ///< query heads of a kv head whose rows one tile holds: 1, or all of them
    int stream_k = 0;  ///< CTAs for equal ranges of the blocks of all tiles; 0: whole tiles

    int block_m() const { return 64 * warpgroups; }
    bool operator==(const ForwardConfig&) const = default;
};

/// The forward of a call on a Hopper GPU, or why no kernel here runs it.
std::optional<Refusal> describe(const AttentionSpec& spec, ForwardDesc& desc);

/// The same of what a caller of the kernels gives, arrays included: UserError with the argument,
/// the rule and the value.
ForwardDesc check_forward(const ForwardInputs& inputs);
/// Of the arrays alone.
void check_arrays(const ForwardInputs& inputs);

/// The kernels of one configuration, from one cubin; `combine` of stream-K.
struct ForwardKernels {
    cuda::Kernel main, combine;
};

/// The configuration that measured fastest for such problems (docs/lab/2026-11-gpu.md).
ForwardConfig choose_forward(const ForwardDesc& desc, int multiprocessors);
/// Configurations worth a trial for such problems, that of `choose_forward` first.
std::vector<ForwardConfig> forward_trials(const ForwardDesc& desc, int multiprocessors);
/// The configuration for masks as lists: their tile size must be known before they are made.
ForwardConfig choose_listed(int query_dim, int value_dim);

/// Bytes of workspace a launch needs.
std::size_t forward_workspace_bytes(const ForwardDesc& desc, const ForwardConfig& config);

/// Bytes of shared memory the kernel of a configuration takes.
int forward_shared_bytes(const ForwardDesc& desc, const ForwardConfig& config);

/// The kernel's translation unit, compilable without a GPU.
cuda::CompileRequest generate_forward(const ForwardDesc& desc, const ForwardConfig& config);

/// Compiles and loads; to be called before a launch is captured in a graph. Kernels stay loaded.
/// `before`: called once, before that takes its time.
ForwardKernels load_forward(
    const ForwardDesc& desc, const ForwardConfig& config, int device,
    const std::function<void()>& before = [] {});

/// Launches loaded kernels: one that builds lists, the main one, one that joins splits.
/// Nothing allocated, nothing waited for.
void launch_forward(const ForwardInputs& inputs, const ForwardDesc& desc,
                    const ForwardConfig& config, const ForwardKernels& kernels,
                    cuda::StreamHandle stream);

/// All four steps.
void forward(const ForwardInputs& inputs, cuda::StreamHandle stream);

}  // namespace tilewright::attn::sm90
