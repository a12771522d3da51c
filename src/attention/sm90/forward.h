// Attention forward on Hopper: check the inputs, choose a configuration, generate the kernel,
// launch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/sm90/device_tensor.h"
#include "attention/sm90/score_mod.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/kernel.h"
#include "tilewright/dtype.h"

namespace tilewright::attn::sm90 {

/// A mask as lists in device memory (see mask_lists.h), made for one tile size.
struct DeviceMask {
    cuda::DeviceAddress tiles = 0, entries = 0, bits = 0;
    std::int64_t batches = 1, heads = 1;  ///< 1: one for all
    std::int64_t q_len = 0, kv_len = 0;
    int warpgroups = 0, block_n = 0;  ///< tiles of 64 * warpgroups rows, blocks of block_n keys
};

/// What a caller gives. Everything lies on one device and stays alive until the launch is done.
struct ForwardInputs {
    DType dtype = DType::bf16;    ///< bf16 or f16, of all four tensors
    DeviceTensor query;           ///< (B, H, Lq, D)
    DeviceTensor key;             ///< (B, Hkv, Lk, D), H a multiple of Hkv
    DeviceTensor value;           ///< (B, Hkv, Lk, Dv)
    DeviceTensor out;             ///< (B, H, Lq, Dv), written
    cuda::DeviceAddress lse = 0;  ///< f32 (B, H, Lq) contiguous, written: natural log
    double scale = 1.0;
    /// Row q sees keys from q + lower to q + upper; causal is an upper diagonal of 0.
    std::optional<std::int64_t> lower_diagonal, upper_diagonal;
    std::optional<DeviceMask> mask;  ///< instead of diagonals
    /// (score f32, b, h, q, kv i64, one Ref per capture) -> f32; null for none.
    std::shared_ptr<const ir::Function> score_mod;
    std::vector<CaptureView> captures;
    cuda::DeviceAddress sinks = 0;    ///< f32 (H): one more logit per row; or 0
    cuda::DeviceAddress row_max = 0;  ///< f32 (B, H, Lq) contiguous, written: largest score; or 0
    bool exact_maximum = false;       ///< of every block, instead of the speculative one
    /// i32 (B, Lq) and (B, Lk) contiguous: only pairs of equal ids attend; or 0. Beside diagonals.
    cuda::DeviceAddress q_segments = 0, kv_segments = 0;
    /// i32 (sequences + 1), never decreasing, from 0 to the length: sequences packed one behind the
    /// other in a batch of 1. Positions restart in each; the batch of mods and dropout counts them.
    cuda::DeviceAddress q_starts = 0, kv_starts = 0;
    std::int64_t sequences = 0;
    double dropout = 0;  ///< share of the probabilities dropped
    std::uint64_t seed = 0;
    cuda::DeviceAddress workspace =
        0;  ///< forward_workspace_bytes of scratch for one launch at a time
    cuda::DeviceAddress profile = 0;  ///< 3 u64 per multiprocessor: cycles, start and end ns; or 0
};

/// Bytes of workspace without segments and packed sequences.
inline constexpr std::size_t kForwardWorkspaceBytes = 16;

/// The problem, checked; every quantity that configuration and kernel depend on.
struct ForwardDesc {
    DType dtype = DType::bf16;
    int query_dim = 0;         ///< D
    int value_dim = 0;         ///< Dv
    bool upper_bound = false;  ///< keys end at a diagonal (causal)
    bool lower_bound = false;  ///< and begin at one (window); implies upper_bound
    bool listed = false;       ///< key blocks are listed
    bool mask_bits = false;    ///< by the caller, with bits; no bounds then
    bool segments = false;
    bool dropout = false;
    std::int64_t sequences = 0;  ///< packed
    bool sinks = false;
    bool row_maximum = false;
    bool exact_maximum = false;  ///< row_maximum needs it
    /// Text of score_mod.cuh; null for none. Equal mods and facts share it.
    std::shared_ptr<const std::string> score_mod;
    int mod_words = 1;           ///< of ModArguments
    bool positive_scale = true;  ///< else scores are scaled before the softmax, not in its exponent
    std::int64_t batch = 0, heads = 0, kv_heads = 0, q_len = 0, kv_len = 0;
    std::int64_t lower_diagonal = 0, upper_diagonal = 0;
};

/// How the kernel is built: one cubin per ForwardConfig and what ForwardDesc says beside sizes.
struct ForwardConfig {
    int warpgroups = 2;     ///< consumers of 64 query rows each, 2 or 3
    int block_n = 128;      ///< keys of a block, a multiple of 16
    int stages = 2;         ///< buffers of K and of V
    int query_buffers = 2;  ///< 2: the next tile starts before this one's results are stored

    int block_m() const { return 64 * warpgroups; }
    bool operator==(const ForwardConfig&) const = default;
};

/// Refuses by name what this engine cannot serve: UserError with the argument, the rule and the
/// value.
ForwardDesc check_forward(const ForwardInputs& inputs);

/// The configuration that measured fastest for such problems (docs/benchmarks-gpu.md).
ForwardConfig choose_forward(const ForwardDesc& desc, int multiprocessors);
/// The configuration for masks as lists: their tile size must be known before they are made.
ForwardConfig choose_listed(int query_dim, int value_dim);

/// Bytes of workspace a launch needs.
std::size_t forward_workspace_bytes(const ForwardDesc& desc, const ForwardConfig& config);

/// Bytes of shared memory the kernel of a configuration takes.
int forward_shared_bytes(const ForwardDesc& desc, const ForwardConfig& config);

/// The kernel's translation unit, compilable without a GPU.
cuda::CompileRequest generate_forward(const ForwardDesc& desc, const ForwardConfig& config);
/// That of the kernel that lists the blocks of segments and packed sequences.
cuda::CompileRequest generate_lists();

/// Compiles and loads; to be called before a launch is captured in a graph. Kernels stay loaded.
const cuda::Kernel& load_forward(const ForwardDesc& desc, const ForwardConfig& config, int device);

/// Launches a loaded kernel, before it the one that builds lists: nothing allocated, nothing waited
/// for.
void launch_forward(const ForwardInputs& inputs, const ForwardDesc& desc,
                    const ForwardConfig& config, const cuda::Kernel& kernel,
                    cuda::StreamHandle stream);

/// All four steps.
void forward(const ForwardInputs& inputs, cuda::StreamHandle stream);

}  // namespace tilewright::attn::sm90
