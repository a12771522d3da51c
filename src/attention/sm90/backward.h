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

/// The inputs of the backward pass: also `out` and `lse` of the forward pass. The mask has tiles of
/// keys.
struct BackwardInputs : ProblemInputs {
    DeviceTensor grad_out;                          ///< (B, H, Lq, Dv)
    cuda::DeviceAddress grad_lse = 0;               ///< f32 (B, H, Lq) contiguous, or 0
    DeviceTensor grad_query, grad_key, grad_value;  ///< written; shaped like query, key and value
    cuda::DeviceAddress grad_sinks = 0;             ///< f32 (H), written if there are sinks
    /// The gradient of each capture, f32, contiguous, written; or 0. Missing entries mean none.
    std::vector<cuda::DeviceAddress> grad_captures;
    bool deterministic = true;  ///< dQ is summed in a fixed order: the same bits in every run
    /// In addition to `mask` where head_dim > 128: the forward's lists, for tiles of queries.
    std::optional<DeviceMask> query_mask;
};

/// Where head_dim > 128, dK and dV of 64 keys do not fit one warpgroup's registers together.
inline bool is_over_128(std::int64_t query_dim, std::int64_t value_dim) {
    return std::max(query_dim, value_dim) > 128;
}

/// The checked problem: everything that the configuration and the kernels depend on.
struct BackwardDesc : ProblemDesc {
    bool deterministic = true;
    bool positive_scale = true;  ///< else dQ where head_dim > 128 scales scores before the exponent
    /// Where head_dim > 128: the mod's text for tiles of queries, whose columns are keys.
    std::shared_ptr<const ScoreModText> query_score_mod;

    bool over_128() const { return is_over_128(query_dim, value_dim); }
};

/// How the kernels are built: one cubin per (BackwardConfig, dtype, dims, bounds).
struct BackwardConfig {
    bool over_128 = false;  ///< for 64 keys one warpgroup accumulates dK and one dV, and dQ has a
                            ///< separate kernel; otherwise each accumulates both, for its 64 keys
    int block_m = 64;       ///< query rows of a block, a multiple of 16; 64 if over_128
    int stages = 2;         ///< stages of Q and of dO
    bool fused = false;     ///< the last tile that adds to a block of dQ, in order, stores it: no
                            ///< kernel follows
    bool ordered = false;   ///< tiles add to dQ in a fixed order although none is asked for
    int splits = 1;  ///< cuts the query heads of a kv head into this many groups, each with tiles
                     ///< of its own, whose dK and dV are added up afterwards; divides their number
    bool ahead = false;   ///< the next tile's first products are issued before this one's results
                          ///< are stored: K has two buffers
    bool upward = false;  ///< tiles of a causal mask begin at their diagonal, and those of the last
                          ///< keys come first, also in the order of sums
    bool wide = false;  ///< what several tiles read is copied first unless its rows begin on lines
    std::int64_t cut_tiles = 0;  ///< the last tiles, this many, ...
    int pieces = 1;  ///< ... are cut into so many pieces, whose dK and dV are added up afterwards

    int strips() const { return over_128 ? 1 : 2; }  ///< strips of 64 keys in a tile
    int block_n() const { return 64 * strips(); }
    bool operator==(const BackwardConfig&) const = default;
};

/// The kernels of one configuration; `query` is used where head_dim > 128.
struct BackwardKernels {
    cuda::Kernel prepare, main, finish, join, join_pieces, sinks, captures, query;
};

/// Describes the backward pass of a call on a Hopper GPU, or says why no kernel here supports it.
std::optional<Refusal> describe(const AttentionSpec& spec, BackwardDesc& desc);

/// The same for direct callers of the kernels, arrays included: UserError with the argument, the
/// rule and the value.
BackwardDesc check_backward(const BackwardInputs& inputs);
/// Checks only the arrays.
void check_arrays(const BackwardInputs& inputs, const BackwardDesc& desc);

/// Do tiles add to dQ in a fixed order? Where head_dim > 128, each sum of dQ belongs to one tile.
bool is_ordered(const BackwardDesc& desc, const BackwardConfig& config);
/// Does the producer describe blocks one by one (backward_layout.cuh)?
bool is_described(const BackwardDesc& desc, const BackwardConfig& config);

/// Can the kernel process tiles in pieces? Only where all tiles visit the same blocks, which gain.
bool cuts_tiles(const BackwardDesc& desc, const BackwardConfig& config);

/// The configuration that measured fastest for such problems (docs/lab/2026-11-gpu.md).
BackwardConfig choose_backward(const BackwardDesc& desc);
/// Configurations worth measuring for such problems; the first is that of `choose_backward`.
std::vector<BackwardConfig> backward_trials(const BackwardDesc& desc);
/// The configuration for masks as lists, whose tile size must be known before they are made.
/// `crowded`: with dropout or a score mod that is not affine, which need extra registers.
BackwardConfig choose_listed_backward(int query_dim, int value_dim, bool crowded);

/// Bytes of shared memory the main kernel of a configuration takes.
int backward_shared_bytes(const BackwardDesc& desc, const BackwardConfig& config);

/// Bytes of scratch, aligned to 256: f32 sums of dQ, two numbers per query row, counters, lists.
std::size_t backward_workspace_bytes(const BackwardDesc& desc, const BackwardConfig& config);

/// The kernels' translation units, which can be compiled without a GPU and in parallel: the main
/// kernel, the kernels that process rows, `query`.
std::vector<cuda::CompileRequest> generate_backward(const BackwardDesc& desc,
                                                    const BackwardConfig& config);

/// A key that distinguishes the kernels of a problem and a configuration from others.
std::string backward_key(const BackwardDesc& desc, const BackwardConfig& config);

/// Compiles and loads; call it before a launch is captured in a graph. Kernels stay loaded.
BackwardKernels load_backward(const BackwardDesc& desc, const BackwardConfig& config, int device);

/// Launches loaded kernels; allocates nothing and waits for nothing.
void launch_backward(const BackwardInputs& inputs, const BackwardDesc& desc,
                     const BackwardConfig& config, const BackwardKernels& kernels,
                     cuda::StreamHandle stream);

/// All four steps. The workspace must have the size for check_backward's and choose_backward's
/// results.
void backward(const BackwardInputs& inputs, cuda::StreamHandle stream);

}  // namespace tilewright::attn::sm90
