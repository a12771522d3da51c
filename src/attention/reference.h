// Dense attention, forward and backward: slow and obvious, the reference that everything is tested
// against.
#pragma once

#include <optional>

#include "support/array.h"
#include "tilewright/mod.h"

namespace tilewright::attn {

/// The mask value of JAX's Pallas attention: finite, so that fully masked rows become averages.
inline constexpr double kFiniteMaskValue = -0.7 * 3.40282346638528859812e38;

/// What attends to what, and how it is computed. Positions are aligned at the top left.
struct ReferenceOptions {
    std::optional<double> scale;     ///< nullopt: 1 / sqrt(E)
    bool causal = false;             ///< kv <= q
    std::int64_t window_left = -1;   ///< q - left <= kv; -1: unbounded
    std::int64_t window_right = -1;  ///< kv <= q + right; -1: unbounded
    Array segment_ids;               ///< (B, L); not given: no segments
    Array kv_segment_ids;            ///< (B, S); not given: segment_ids (needs L == S)
    Array kv_lengths;     ///< (B): keys from this position on do not exist; not given: all do
    Mod score_mod, mask;  ///< undefined: none
    Array sinks;          ///< (Hq): one more logit per head
    double dropout = 0;   ///< fraction of the probabilities dropped, chosen by `seed`
    std::uint64_t seed = 0;
    std::int64_t first_batch = 0;  ///< the batch and head that mods and dropout see for index 0
    std::int64_t first_head = 0;
    /// Score of a masked pair. -inf is what the API does: a row with nothing to attend to gives 0.
    double mask_value = -__builtin_inf();
    /// f64: the reference. Another float type: the plain computation in that dtype, with sums in
    /// f32 and every array (scores, probabilities, results) rounded to it.
    DType arithmetic = DType::f64;
    /// Gradients start from the forward's rounded log-sum-exp and output, as in fused kernels.
    bool from_stored = false;
};

struct ReferenceOutput {
    Array out;         ///< (B, Hq, L, Ev)
    Array lse;         ///< (B, Hq, L), natural log; -inf for a row with nothing to attend to
    Array max_scores;  ///< (B, Hq, L), scaled scores; -inf for such a row
};

struct ReferenceGradients {
    Array query, key, value;      ///< the shapes of the inputs
    Array sinks;                  ///< (Hq), if there are sinks
    std::vector<Array> captured;  ///< gradients of score_mod's differentiable captures, in order
};

/// softmax(mask(score_mod(scale * Q K^T))) V. query (B, Hq, L, E), key (B, Hkv, S, E), value (B,
/// Hkv, S, Ev) with Hq a multiple of Hkv. UserError when shapes do not fit.
ReferenceOutput reference_forward(const Array& query, const Array& key, const Array& value,
                                  const ReferenceOptions& options = {});

/// (B, Hkv, S): 1 where some query may attend to the key, else 0. The other keys contribute
/// nothing, whatever they hold.
Array reference_attended_keys(const Array& query, const Array& key,
                              const ReferenceOptions& options);

/// Gradients of the inputs for dout (B, Hq, L, Ev) and, if given, dlse (B, Hq, L).
ReferenceGradients reference_backward(const Array& query, const Array& key, const Array& value,
                                      const Array& dout, const Array& dlse = {},
                                      const ReferenceOptions& options = {});

/// What the rounding errors of a computation in `options.arithmetic` are relative to where the
/// terms of its sums cancel. For a sum it is the root of the sum of the terms' squares, since
/// rounding errors add up like a random walk; for a difference, the sum of both sizes; for a
/// probability, itself times 1 + the sizes of its score and log-sum-exp. A query with a single key
/// has gradients of 0, but their sizes are those of dP and delta, whose rounding errors remain.
struct ReferenceSizes {
    Array out;  ///< shape of ReferenceOutput::out
    Array lse;  ///< the largest size of a score
    ReferenceGradients gradients;
};

/// Without dout (B, Hq, L, Ev), only the sizes of out and lse.
ReferenceSizes reference_sizes(const Array& query, const Array& key, const Array& value,
                               const Array& dout, const ReferenceOptions& options = {});

/// The factor that dropout applies to the probability of a pair: 0 or 1 / (1 - rate).
double dropout_factor(double rate, std::uint64_t seed, std::int64_t b, std::int64_t h,
                      std::int64_t q, std::int64_t kv);

}  // namespace tilewright::attn
