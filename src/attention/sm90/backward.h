// Attention backward on Hopper: check the inputs, choose a configuration, generate the kernels,
// launch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention/sm90/problem.h"

namespace tilewright::attn::sm90 {

/// What a caller of the backward gives: `out` and `lse` of the forward, the mask's tiles of keys.
struct BackwardInputs : ProblemInputs {
    DeviceTensor grad_out;                          ///< (B, H, Lq, Dv)
    cuda::DeviceAddress grad_lse = 0;               ///< f32 (B, H, Lq) contiguous, or 0
    DeviceTensor grad_query, grad_key, grad_value;  ///< written; shapes of query, key and value
    cuda::DeviceAddress grad_sinks = 0;             ///< f32 (H), written where there are sinks
    /// f32, contiguous, written: the gradient of each capture, or 0; fewer than captures: none.
    std::vector<cuda::DeviceAddress> grad_captures;
    bool deterministic = true;  ///< dQ is summed in a fixed order: the same bits in every run
    /// Beside `mask` where a head is wider than 128: its lists for tiles of queries, the forward's.
    std::optional<DeviceMask> query_mask;
};

/// Past 128 columns dK and dV of 64 keys do not fit one warpgroup's registers together.
inline bool is_over_128(std::int64_t query_dim, std::int64_t value_dim) {
    return std::max(query_dim, value_dim) > 128;
}

/// The problem, checked; every quantity that configuration and kernels depend on.
struct BackwardDesc : ProblemDesc {
    bool deterministic = true;
    bool positive_scale = true;  ///< else dQ where head_dim > 128 scales scores before the exponent
    /// The mod for tiles of queries, whose columns are keys; where head_dim > 128.
    std::shared_ptr<const ScoreModText> query_score_mod;

    bool over_128() const { return is_over_128(query_dim, value_dim); }
};

/// How the kernels are built: one cubin per (BackwardConfig, dtype, dims, bounds).
struct BackwardConfig {
    bool over_128 = false;  ///< one warpgroup sums up dK, one dV, of 64 keys, and dQ has a kernel
                            ///< of its own; else each sums up both of 64 keys
    int block_m = 64;       ///< query rows of a block, a multiple of 16; 64 where over_128
    int stages = 2;         ///< buffers of Q and of dO
    int splits = 1;         ///< of the query heads of a kv head, which they divide: tiles of their
                            ///< own, whose dK and dV are joined afterwards

    int strips() const { return over_128 ? 1 : 2; }  ///< of 64 keys in a tile
    int block_n() const { return 64 * strips(); }
    bool operator==(const BackwardConfig&) const = default;
};

/// The kernels of one configuration; `query` where head_dim > 128.
struct BackwardKernels {
    cuda::Kernel prepare, main, finish, join, sinks, captures, query;
};

/// The backward of a call on a Hopper GPU, or why no kernel here runs it.
std::optional<Refusal> describe(const AttentionSpec& spec, BackwardDesc& desc);

/// The same of what a caller of the kernels gives, arrays included: UserError with the argument,
/// the rule and the value.
BackwardDesc check_backward(const BackwardInputs& inputs);
/// Of the arrays alone.
void check_arrays(const BackwardInputs& inputs, const BackwardDesc& desc);

/// The configuration that measured fastest for such problems (docs/lab/2026-11-gpu.md).
BackwardConfig choose_backward(const BackwardDesc& desc);
/// Configurations worth a trial for such problems, that of `choose_backward` first.
std::vector<BackwardConfig> backward_trials(const BackwardDesc& desc);
/// The configuration for masks as lists: their tile size must be known before they are made.
/// `crowded`: with dropout or a score mod that is not affine, which need registers of their own.
BackwardConfig choose_listed_backward(int query_dim, int value_dim, bool crowded);

/// Bytes of shared memory the main kernel of a configuration takes.
int backward_shared_bytes(const BackwardDesc& desc, const BackwardConfig& config);

/// Bytes of scratch, aligned to 256: f32 sums of dQ, two numbers per query row, counters, lists.
std::size_t backward_workspace_bytes(const BackwardDesc& desc, const BackwardConfig& config);

/// The kernels' translation units, compilable without a GPU and beside each other: the main kernel,
/// those of rows, `query`.
std::vector<cuda::CompileRequest> generate_backward(const BackwardDesc& desc,
                                                    const BackwardConfig& config);

/// What distinguishes the kernels of a problem and a configuration from others.
std::string backward_key(const BackwardDesc& desc, const BackwardConfig& config);

/// Compiles and loads; to be called before a launch is captured in a graph. Kernels stay loaded.
BackwardKernels load_backward(const BackwardDesc& desc, const BackwardConfig& config, int device);

/// Launches loaded kernels: nothing allocated, nothing waited for.
void launch_backward(const BackwardInputs& inputs, const BackwardDesc& desc,
                     const BackwardConfig& config, const BackwardKernels& kernels,
                     cuda::StreamHandle stream);

/// All four steps. The workspace is that of check_backward's and choose_backward's results.
void backward(const BackwardInputs& inputs, cuda::StreamHandle stream);

}  // namespace tilewright::attn::sm90
