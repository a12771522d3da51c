// Options of `attention` for the dense reference.
#pragma once

#include <cmath>

#include "attention/reference.h"
#include "tests/support/accuracy.h"
#include "tilewright/attention.h"

namespace tilewright::attn {

/// The same problem for the reference, without packed sequences and block masks.
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

/// Writes NaN to the rows of keys and values (B, Hkv, S, n) that no query may attend to, according
/// to reference_attended_keys.
inline void poison_unattended(const Array& attended, const Tensor& key, const Tensor& value) {
    for (std::int64_t b = 0; b < key.dim(0); ++b)
        for (std::int64_t h = 0; h < key.dim(1); ++h)
            for (std::int64_t j = 0; j < key.dim(2); ++j) {
                if (attended(b, h, j) != 0) continue;
                for (const Tensor& x : {key, value})
                    x.slice(0, b, 1).slice(1, h, 1).slice(2, j, 1).fill(std::nan(""));
            }
}

}  // namespace tilewright::attn
