// Where the arrays of an attention call are.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/spec.h"
#include "tilewright/attention.h"
#include "tilewright/mask.h"

namespace tilewright::attn {

/// BHSD views with unit stride in the last dimension, on the spec's device. Arrays that the spec
/// does not have are undefined.
struct AttentionBuffers {
    /// The views of keys and values end after the last key that any query may attend to by position
    /// or length, so that no program reads past it.
    Tensor query, key, value;
    Tensor segment_ids, kv_segment_ids;  ///< contiguous, both i32 or i64
    Tensor kv_lengths;  ///< (batch), or (sequences) if packed; contiguous, i32 or i64
    Tensor sinks;
    std::vector<Tensor> captured;  ///< of the score mod, then of the mask if programs evaluate it
    BlockMask block_mask;
    std::vector<std::int64_t> starts, kv_starts;  ///< starts of packed sequences: N + 1 each
    std::uint64_t seed = 0;                       ///< seed of dropout

    AttentionOutput result;  ///< written by the forward, read by the backward
    Tensor dout, dlse;
    Tensor query_gradient, key_gradient, value_gradient;  ///< undefined if not wanted
    /// Accumulators, f32 or f64, contiguous: for the sinks, and for each capture of the score mod.
    Tensor sinks_gradient;
    std::vector<Tensor> captured_gradients;

    Tensor workspace;  ///< as many bytes as the engine asks for; contents undefined
};

/// A call after checks and preparation.
struct AttentionCall {
    AttentionSpec spec;
    AttentionBuffers buffers;
    std::int64_t given_kv_length = 0;  ///< number of keys in the caller's arrays
};

}  // namespace tilewright::attn
