// The dense reference for the options of `attention`.
#pragma once

#include "attention/reference.h"
#include "tests/support/accuracy.h"
#include "tilewright/attention.h"

namespace tilewright::attn {

/// The same problem for the reference. Packed sequences and
/// block masks are no part of it.
inline ReferenceOptions reference_options(const AttentionOptions& options) {
    ReferenceOptions result;
    result.scale = options.scale;
    result.causal = options.causal;
    result.window_left = options.window.left;
    result.window_right = options.window.right;
    result.segment_ids = to_array(options.segment_ids);
    result.kv_segment_ids = to_array(options.kv_segment_ids);
    result.kv_lengths = to_array(options.kv_lengths);
    result.score_mod = options.score_mod;
    result.mask = options.mask;
    result.sinks = to_array(options.sinks);
    result.dropout = options.dropout;
    result.seed = options.seed;
    return result;
}

}  // namespace tilewright::attn
