// Fused attention, forward and backward, on tensors.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/mask.h"
#include "tilewright/mod.h"
#include "tilewright/tensor.h"

namespace TW_API tilewright {

/// Order of the dimensions of query, key, value and their gradients.
enum class Layout : std::uint8_t {
    bhsd,  ///< (batch, heads, sequence, head dimension)
    bshd,  ///< (batch, sequence, heads, head dimension)
};

/// q - left <= kv <= q + right; -1: unbounded. Positions count from the top left.
struct Window {
    std::int64_t left = -1;
    std::int64_t right = -1;
    bool operator==(const Window&) const = default;
};

/// Block sizes of one pass; 0: chosen automatically.
struct AttentionBlocks {
    std::int64_t q = 0;  ///< queries of one program
    std::int64_t kv = 0;
    /// For tile programs on a GPU, as in `CallOptions`: UserError if shared memory does not hold
    /// that many stages.
    int num_warps = 0;
    int num_stages = 0;
    bool operator==(const AttentionBlocks&) const = default;
};

/// Options of `attention` and `attention_backward`. Several masks are combined by intersection.
struct AttentionOptions {
    std::optional<double> scale = {};  ///< nullopt: 1 / sqrt(head dimension)
    bool causal = false;               ///< kv <= q, counted from the top left
    Window window = {};
    Tensor segment_ids = {};     ///< (B, L) integers: only positions with equal ids attend
    Tensor kv_segment_ids = {};  ///< (B, S); by default segment_ids, which needs L == S
    /// (B) integers in [0, S], or with cu_seqlens (N), one for each sequence: keys past that number
    /// are ignored, whatever the arrays hold. For a call on a GPU they may be in its memory:
    /// nothing waits for them, and values outside [0, S] are clamped; in CPU memory those throw.
    Tensor kv_lengths = {};
    Mod mask = {};              ///< a mask mod: which pairs attend
    BlockMask block_mask = {};  ///< the same as data; with cu_seqlens, over packed positions
    Mod score_mod = {};         ///< applied to the scaled scores, before the mask
    /// (N + 1) integers 0 = c[0] <= c[1] <= ... = total length: N sequences packed one after
    /// another in a batch of 1. Positions restart in each, and the batch index that mods see is the
    /// sequence. Keys use kv_cu_seqlens, by default the same.
    Tensor cu_seqlens = {};
    Tensor kv_cu_seqlens = {};
    Tensor sinks = {};   ///< (Hq) floats: an extra logit per head in the softmax, without a value
    double dropout = 0;  ///< in [0, 1): fraction of probabilities dropped; the rest are scaled up
    std::uint64_t seed = 0;  ///< of dropout: the same pairs for all blocks, threads and devices
    Layout layout = Layout::bhsd;
    /// For a part of a larger call, the batch and query head at which it starts there: mods and
    /// dropout count from them. Block masks are those of the part.
    std::optional<std::array<std::int64_t, 2>> origin = {};
    bool deterministic = true;  ///< results never depend on timing; on the CPU that costs nothing
    bool checked = false;       ///< run in the checked mode: bounds, NaN poison, races. Slow
    bool max_scores = false;    ///< whether GPUs compute them; see AttentionOutput
    /// Says that `attention_backward` will follow: its kernels for GPUs are compiled meanwhile on
    /// another thread. Results do not depend on it.
    bool gradient = false;
    /// "tiles": tile programs. "sm90": the engine for Hopper GPUs, UserError if unsupported. Empty:
    /// the fastest that supports the call; TILEWRIGHT_DEBUG=1 prints which, and why.
    std::string engine = {};
    /// How GPUs multiply f32 inputs. "ieee" or empty: f32 products. "tf32": operands rounded to 11
    /// significant bits. "bf16x3": three products of operands split into two bf16 values, which
    /// keep about 16 bits. CPUs always compute "ieee". UserError for inputs of other dtypes.
    std::string precision = {};
    /// Hints, which may change the last bits of results but not their accuracy. The engine for
    /// Hopper GPUs uses the nearest of its tile shapes, which fix its warps and stages; tile
    /// programs on GPUs take powers of two from 16 to 256 that fit in shared memory.
    AttentionBlocks forward_blocks = {}, backward_blocks = {};
    /// The first call of a pass with given shapes measures a few block sizes (those given stay) and
    /// later calls use the fastest, which the disk cache keeps. Packed sequences share one choice.
    bool autotune = false;
};

/// Results of `attention`. A row that attends to nothing has out 0, lse -inf and max_scores -inf.
struct AttentionOutput {
    Tensor out;  ///< (B, Hq, L, Ev) in the layout of the query, with the dtype of the value
    Tensor lse;  ///< (B, Hq, L), natural log, sinks included; f32, or f64 for f64 inputs
    /// (B, Hq, L), of the scores after score_mod and masks, without sinks; the dtype of lse. On a
    /// GPU only if the options ask for it, because it costs time there; else undefined.
    Tensor max_scores;
};

struct AttentionGradients {
    Tensor query, key, value;      ///< shapes, dtypes and layout of the inputs
    Tensor sinks;                  ///< shape and dtype of the sinks; undefined without sinks
    std::vector<Tensor> captured;  ///< of the floating captures of score_mod, in the order of their
                                   ///< first use; of their types
};

/// softmax(mask(score_mod(scale * Q K^T))) V (Vaswani et al., 2017), without storing the scores
/// (FlashAttention, Dao et al., 2022). query (B, Hq, L, E), key (B, Hkv, S, E) and value (B, Hkv,
/// S, Ev) have one dtype, f32, f64, f16 or bf16, any strides, and lengths up to 2^30. Hq is a
/// multiple of Hkv: query head h reads kv head h / (Hq / Hkv), and mods see the query head. All
/// tensors and captures are on one device (cu_seqlens may be in CPU memory); on a GPU the work goes
/// to this thread's stream (`set_cuda_stream`) and nothing waits for it. UserError for arguments
/// that do not match.
AttentionOutput attention(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionOptions& options = {});

/// Gradients, given those of the output (B, Hq, L, Ev) and, optionally, of lse (B, Hq, L).
/// `forward` is what `attention` returned for the same arguments.
AttentionGradients attention_backward(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionOutput& forward, const Tensor& dout,
                                      const AttentionOptions& options = {},
                                      const Tensor& dlse = {});

/// The same into the caller's tensors, with the shapes and dtypes that the functions above return;
/// lse, max_scores, `sinks` and `captured` without gaps. Nothing is returned for undefined lse,
/// max_scores and gradients of query, key and value; undefined `sinks` and `captured` are made.
void attention_into(const AttentionOutput& out, const Tensor& query, const Tensor& key,
                    const Tensor& value, const AttentionOptions& options = {});
void attention_backward_into(AttentionGradients& gradients, const Tensor& query, const Tensor& key,
                             const Tensor& value, const AttentionOutput& forward,
                             const Tensor& dout, const AttentionOptions& options = {},
                             const Tensor& dlse = {});

}  // namespace tilewright
