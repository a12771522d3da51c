// Inputs that forward and backward of the Hopper engine share, and the checks of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/sm90/device_tensor.h"
#include "attention/sm90/score_mod.h"
#include "attention/spec.h"
#include "cuda/codegen/wgmma_shapes.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/kernel.h"
#include "tilewright/dtype.h"

namespace tilewright::attn::sm90 {

/// A mask as lists in device memory (mask_lists.h), made for one tile size.
struct DeviceMask {
    cuda::DeviceAddress tiles = 0, entries = 0, bits = 0, live = 0;
    std::int64_t batches = 1, heads = 1;  ///< 1: the same for all
    std::int64_t q_len = 0, kv_len = 0;
    bool by_key = false;  ///< for the backward pass: tiles of keys and blocks of queries
    int strips = 0;       ///< a tile has 64 * strips rows
    int block = 0;        ///< columns of a block
    std::int64_t heads_per_order = 1;  ///< by_key: number of heads that share one order of tiles
};

/// The caller's inputs. Everything is on one device and must stay alive until the launches are
/// done.
struct ProblemInputs {
    DType dtype = DType::bf16;    ///< bf16 or f16, of all tensors
    DeviceTensor query;           ///< (B, H, Lq, D)
    DeviceTensor key;             ///< (B, Hkv, Lk, D), H a multiple of Hkv
    DeviceTensor value;           ///< (B, Hkv, Lk, Dv)
    DeviceTensor out;             ///< (B, H, Lq, Dv), written by the forward
    cuda::DeviceAddress lse = 0;  ///< f32 (B, H, Lq) contiguous, likewise; natural log
    double scale = 1.0;
    /// Row q sees keys from q + lower to q + upper; causal is an upper diagonal of 0.
    std::optional<std::int64_t> lower_diagonal, upper_diagonal;
    std::optional<DeviceMask> mask;  ///< instead of diagonals
    /// (score f32, b, h, q, kv i64, one Ref per capture) -> f32; null for none.
    std::shared_ptr<const ir::Function> score_mod;
    std::vector<CaptureView> captures;
    cuda::DeviceAddress sinks = 0;  ///< f32 (H): one more logit per row; or 0
    /// i32 (B, Lq) and (B, Lk), contiguous: only pairs with equal ids attend; or 0. Diagonals still
    /// apply.
    cuda::DeviceAddress q_segments = 0, kv_segments = 0;
    /// i32 (sequences + 1), from 0 to the length, never decreasing: the starts of sequences packed
    /// one after another in a batch of 1. Positions restart in each; mods and dropout see its
    /// number as the batch.
    cuda::DeviceAddress q_starts = 0, kv_starts = 0;
    std::int64_t sequences = 0;
    /// (B), or (sequences) if packed; contiguous integers of `length_bytes` bytes (4 or 8), clamped
    /// to [0, keys]: keys from this position on do not exist; or 0.
    cuda::DeviceAddress kv_lengths = 0;
    int length_bytes = 0;
    double dropout = 0;  ///< fraction of the probabilities dropped
    std::uint64_t seed = 0;
    cuda::DeviceAddress workspace = 0;  ///< scratch for one call at a time
    cuda::DeviceAddress profile = 0;  ///< per multiprocessor 3 u64: cycles, start and end ns; or 0
};

/// The checked problem: what configurations and kernels of both passes depend on.
struct ProblemDesc {
    DType dtype = DType::bf16;
    int query_dim = 0;         ///< D
    int value_dim = 0;         ///< Dv
    bool upper_bound = false;  ///< keys end at a diagonal (causal)
    bool lower_bound = false;  ///< and begin at one (window); implies upper_bound
    bool listed = false;       ///< blocks are listed
    bool mask_bits = false;    ///< listed by the caller, with bits; then there are no bounds
    bool segments = false;
    bool dropout = false;
    bool sinks = false;
    int length_bytes = 0;        ///< size of a length of keys; 0: there are no lengths
    std::int64_t sequences = 0;  ///< packed sequences; 0: not packed
    /// The text of score_mod.cuh; null for none. Equal mods and facts share one object.
    std::shared_ptr<const ScoreModText> score_mod;
    std::int64_t batch = 0, heads = 0, kv_heads = 0, q_len = 0, kv_len = 0;
    std::int64_t lower_diagonal = 0, upper_diagonal = 0;
};

/// Row q sees keys from q + lower to q + upper.
struct Diagonals {
    std::optional<std::int64_t> lower, upper;
};
/// The diagonals of causal and window, unless they are part of a mask as data.
Diagonals diagonals_of(const AttentionSpec& spec);

/// Fills in a description except its score mod, from a call or from a direct caller's inputs.
/// Checks nothing.
void describe(const AttentionSpec& spec, ProblemDesc& desc);
void describe(const ProblemInputs& inputs, ProblemDesc& desc);

/// A broken rule as a refusal of this engine.
inline Refusal refusal(const std::string& rule) {
    return {fmt::format("[{}] {}", kOperation, rule)};
}

/// The rule that a problem breaks and that every kernel here needs: argument, rule and value;
/// empty: none.
std::string broken_rule(const ProblemDesc& desc);
/// Checks shapes against each other, strides and addresses. UserError with the argument, the rule
/// and the value.
void check_problem_arrays(const ProblemInputs& inputs);

/// What the names of a problem's kernels say: "bf16_d128x128_causal_mod".
std::string variant_name(const ProblemDesc& desc);
/// A key that distinguishes the kernels of different problems with the same configuration.
std::string variant_key(const ProblemDesc& desc);
/// What a problem's kernels are compiled from, apart from their source and configuration: device
/// headers, `products` by wgmma, the mod's text. A thread may spill `spills` bytes, or
/// more if there is a mod; the other checks of the compiler's log still apply.
cuda::CompileRequest kernel_request(std::string name, const ProblemDesc& desc,
                                    std::span<const cuda::WgmmaShape> products, int spills);
/// A generated header of constants: those that every kernel reads, and `constants`. `what` is for
/// its first line.
cuda::Header config_header(std::string file, std::string_view what, const ProblemDesc& desc,
                           std::string_view constants);

/// The fraction of probabilities dropped, as a threshold for 32 random bits.
unsigned dropout_threshold(double share);

}  // namespace tilewright::attn::sm90
