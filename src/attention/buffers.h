// Where the arrays of an attention call are.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/spec.h"
#include "tilewright/attention.h"
#include "tilewright/mask.h"

namespace tilewright::attn {

/// BHSD views with unit stride in the last dimension, on the device of the spec. What the spec does
/// not name is undefined.
struct AttentionBuffers {
    /// Views end after the last key that a query may attend by position or length, so that no
    /// program reads what lies there.
    Tensor query, key, value;
    Tensor segment_ids, kv_segment_ids;  ///< contiguous, both i32 or i64
    Tensor kv_lengths;  ///< (batch), or (sequences) of packed ones, contiguous, i32 or i64
    Tensor sinks;
    std::vector<Tensor> captured;  ///< of the score mod, then of the mask that is evaluated
    BlockMask block_mask;
    std::vector<std::int64_t> starts, kv_starts;  ///< of packed sequences: N + 1
    std::uint64_t seed = 0;                       ///< of dropout

    AttentionOutput result;  ///< written by the forward, read by the backward
    Tensor dout, dlse;
    Tensor query_gradient, key_gradient, value_gradient;  ///< undefined where not wanted
    /// Sums over the call, f32 or f64: of the sinks, and by capture of the score mod. Contiguous.
    Tensor sinks_gradient;
    std::vector<Tensor> captured_gradients;

    Tensor workspace;  ///< bytes, as many as the engine asks for; contents undefined
};

/// A call, checked and prepared.
struct AttentionCall {
    AttentionSpec spec;
    AttentionBuffers buffers;
    std::int64_t given_kv_length = 0;  ///< keys in the caller's arrays
};

}  // namespace tilewright::attn
