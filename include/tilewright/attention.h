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

/// How one pass is divided; 0: chosen.
struct AttentionBlocks {
    std::int64_t q = 0;  ///< queries that a tile program works on at once
    std::int64_t kv = 0;
    /// Of tile programs on a GPU, as in `CallOptions`: UserError where shared memory does not hold
    /// that many stages.
    int num_warps = 0;
    int num_stages = 0;
    bool operator==(const AttentionBlocks&) const = default;
};

/// Options of `attention` and `attention_backward`. Several masks given: their intersection.
struct AttentionOptions {
    std::optional<double> scale = {};  ///< nullopt: 1 / sqrt(head dimension)
    bool causal = false;               ///< kv <= q, counted from the top left
    Window window = {};
    Tensor segment_ids = {};     ///< (B, L) integers: only equal ids attend to each other
    Tensor kv_segment_ids = {};  ///< (B, S); left out: segment_ids, which needs L == S
    /// (B) integers in [0, S]: keys from there on do not exist, whatever the arrays hold; with
    /// cu_seqlens (N), of each sequence. On a GPU they may lie there, nothing waits for them, and
    /// those outside [0, S] clamp; in CPU memory they are errors.
    Tensor kv_lengths = {};
    Mod mask = {};              ///< mask mod: which pairs attend
    BlockMask block_mask = {};  ///< the same as data; with cu_seqlens, of packed positions
    Mod score_mod = {};         ///< applied to the scaled scores, before the mask
    /// (N + 1) integers 0 = c[0] <= c[1] <= ... = total length: N sequences packed one after the
    /// other in a batch of 1. Positions restart in each, and the batch that mods see counts
    /// sequences. For the keys: kv_cu_seqlens, or the same.
    Tensor cu_seqlens = {};
    Tensor kv_cu_seqlens = {};
    Tensor sinks = {};   ///< (Hq) floats: one more logit per head in the softmax, without a value
    double dropout = 0;  ///< in [0, 1): share of the probabilities dropped; others grow to match
    std::uint64_t seed = 0;  ///< of dropout: the same pairs for any blocks, threads and device
    Layout layout = Layout::bhsd;
    /// Batch and query head of a larger call that the first ones here are: mods and dropout count
    /// from them. Left out, the call is a whole one. Block masks are the part's own.
    std::optional<std::array<std::int64_t, 2>> origin = {};
    bool deterministic = true;  ///< results never depend on timing; on the CPU that costs nothing
    bool checked = false;       ///< run in the checked mode: bounds, NaN poison, races. Slow
    bool max_scores = false;    ///< wanted; see AttentionOutput
    /// `attention_backward` will follow: meanwhile its kernels for GPUs are compiled on another
    /// thread. Results do not depend on it.
    bool gradient = false;
    /// "tiles": tile programs. "sm90": the engine for Hopper GPUs, UserError if unsupported.
    /// Empty: the fastest that supports the call; TILEWRIGHT_DEBUG=1 says which, and why.
    std::string engine = {};
    /// Products of f32 inputs on GPUs: "ieee" or empty, of f32; "tf32", of operands rounded to 11
    /// significant bits; "bf16x3", three of operands split into two bf16, which keep about 16.
    /// CPUs compute "ieee" whatever is asked for. UserError for inputs of other dtypes.
    std::string precision = {};
    /// Hints: results keep their accuracy, not their last bits. The engine for Hopper GPUs takes
    /// the nearest of its tiles, from which its warps and stages follow; generated tile programs on
    /// GPUs take powers of two from 16 to 256 that shared memory holds.
    AttentionBlocks forward_blocks = {}, backward_blocks = {};
    /// The first call of a pass and its shapes measures a few blocks (those given stay) and the
    /// fastest are used from then on, kept in the disk cache. Packed sequences share one choice.
    bool autotune = false;
};

/// What `attention` gives. A row with nothing to attend: out 0, lse -inf, max_scores -inf.
struct AttentionOutput {
    Tensor out;  ///< (B, Hq, L, Ev) in the layout of the query, dtype of the value
    Tensor lse;  ///< (B, Hq, L), natural log, sinks included; f32, or f64 for f64 inputs
    /// (B, Hq, L), of the scores after score_mod and masks, without sinks. On a GPU only where the
    /// options ask for it, for it costs time there; else undefined.
    Tensor max_scores;
};

struct AttentionGradients {
    Tensor query, key, value;      ///< shapes, dtypes and layout of the inputs
    Tensor sinks;                  ///< of the sinks' type; undefined without sinks
    std::vector<Tensor> captured;  ///< of the floating captures of score_mod, in the order of their
                                   ///< first use; of their types
};

/// softmax(mask(score_mod(scale * Q K^T))) V. query (B, Hq, L, E), key (B, Hkv, S, E), value (B,
/// Hkv, S, Ev), all of f32, f64, f16 or bf16, any strides and any lengths; Hq is a multiple of Hkv,
/// query head h reads kv head h / (Hq / Hkv). Mods see the query head. UserError when something
/// does not fit. All tensors and captures are on one device (cu_seqlens may be in CPU memory); on a
/// GPU the work goes to this thread's stream (`set_cuda_stream`) and nothing waits for it.
AttentionOutput attention(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionOptions& options = {});

/// Gradients from that of the output (B, Hq, L, Ev) and, optionally, of lse (B, Hq, L). `forward`
/// is what `attention` gave for the same arguments.
AttentionGradients attention_backward(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionOutput& forward, const Tensor& dout,
                                      const AttentionOptions& options = {},
                                      const Tensor& dlse = {});

/// The same into tensors of the caller, of the shapes and dtypes that the functions above give, lse
/// and max_scores without gaps. `out.max_scores` may be undefined. Gradients of query, key and
/// value that are undefined are not wanted; `sinks` and `captured` are not written to but set.
void attention_into(const AttentionOutput& out, const Tensor& query, const Tensor& key,
                    const Tensor& value, const AttentionOptions& options = {});
void attention_backward_into(AttentionGradients& gradients, const Tensor& query, const Tensor& key,
                             const Tensor& value, const AttentionOutput& forward,
                             const Tensor& dout, const AttentionOptions& options = {},
                             const Tensor& dlse = {});

}  // namespace tilewright
