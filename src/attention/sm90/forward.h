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

/// The inputs of the forward pass. The mask has tiles of queries.
struct ForwardInputs : ProblemInputs {
    cuda::DeviceAddress row_max = 0;  ///< f32 (B, H, Lq) contiguous, written: largest score; or 0
    bool exact_maximum = false;       ///< the maximum of every block instead of a speculative one
};

/// Bytes of workspace for problems without segments and packed sequences.
inline constexpr std::size_t kForwardWorkspaceBytes = 16;

/// The checked problem: everything that the configuration and the kernel depend on.
struct ForwardDesc : ProblemDesc {
    bool row_maximum = false;
    bool exact_maximum = false;  ///< row_maximum needs it
    bool positive_scale = true;  ///< else scores are scaled before the softmax, not in its exponent
    std::int64_t listed_keys = 0;  ///< listed: about how many keys a query has; 0: unknown
};

/// How the kernel is built: one cubin per ForwardConfig and per ForwardDesc apart from its sizes.
struct ForwardConfig {
    int warpgroups = 2;     ///< consumers of 64 query rows each, 1 to 3
    int block_n = 128;      ///< keys of a block, a multiple of 16
    int stages = 2;         ///< stages of K and of V
    int query_buffers = 2;  ///< with 2, the next tile starts before this one's results are stored
    int group = 1;          ///< query heads of a kv head whose rows share a tile: 1, or all of them
    int stream_k = 0;       ///< CTAs with equal ranges of the blocks of all tiles; 0: whole tiles
    int ctas = 1;           ///< CTAs side by side on a multiprocessor; several have one warpgroup
    bool wide = false;      ///< K and V are copied first unless their rows begin on lines

    int block_m() const { return 64 * warpgroups; }
    bool operator==(const ForwardConfig&) const = default;
};

/// Describes the forward pass of a call on a Hopper GPU, or says why no kernel here supports it.
std::optional<Refusal> describe(const AttentionSpec& spec, ForwardDesc& desc);

/// The same for direct callers of the kernels, arrays included: UserError with the argument, the
/// rule and the value.
ForwardDesc check_forward(const ForwardInputs& inputs);
/// Checks only the arrays.
void check_arrays(const ForwardInputs& inputs);

/// The kernels of one configuration, from one cubin; `combine` is for stream-K.
struct ForwardKernels {
    cuda::Kernel main, combine;
};

/// The configuration that measured fastest for such problems (docs/lab/2026-11-gpu.md).
ForwardConfig choose_forward(const ForwardDesc& desc, int multiprocessors);
/// Configurations worth measuring for such problems; the first is that of `choose_forward`.
std::vector<ForwardConfig> forward_trials(const ForwardDesc& desc, int multiprocessors);
/// The configuration for listed blocks, where a query has about `keys` keys; 0: unknown. The tile
/// size of a mask's lists must be known before they are made.
ForwardConfig choose_listed(int query_dim, int value_dim, std::int64_t keys);

/// Bytes of workspace that a launch needs.
std::size_t forward_workspace_bytes(const ForwardDesc& desc, const ForwardConfig& config);

/// Bytes of shared memory that the kernel of a configuration takes.
int forward_shared_bytes(const ForwardDesc& desc, const ForwardConfig& config);

/// The kernel's translation unit; can be compiled without a GPU.
cuda::CompileRequest generate_forward(const ForwardDesc& desc, const ForwardConfig& config);

/// Compiles and loads; call it before a launch is captured in a graph. Kernels stay loaded.
/// `before` is called once, before the slow part.
ForwardKernels load_forward(
    const ForwardDesc& desc, const ForwardConfig& config, int device,
    const std::function<void()>& before = [] {});

/// Launches loaded kernels: list builder, main kernel, join of splits. Allocates nothing and waits
/// for nothing.
void launch_forward(const ForwardInputs& inputs, const ForwardDesc& desc,
                    const ForwardConfig& config, const ForwardKernels& kernels,
                    cuda::StreamHandle stream);

/// All four steps.
void forward(const ForwardInputs& inputs, cuda::StreamHandle stream);

}  // namespace tilewright::attn::sm90
