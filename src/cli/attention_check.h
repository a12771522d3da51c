// The check of `tilewright attention`: results against the dense f64 reference.
#pragma once

#include <ostream>

#include "tilewright/attention.h"

namespace tilewright::cli {

/// One attention and what it gave; tensors in the layout of the options.
struct AttentionRun {
    Tensor query, key, value;
    AttentionOptions options;
    AttentionOutput output;
    Tensor dout;  ///< undefined: no gradients
    AttentionGradients gradients = {};
    bool on_gpu = false;  ///< where products may have another precision than f32's
};

/// Writes a line per result, "check NAME largest error E, allowed A: ok" or "WRONG", and returns
/// whether all are ok. Allowed is what support/accuracy.h derives from the same computation in the
/// inputs' dtype, and the precision of products. Errors: those of the reference.
bool check_attention(const AttentionRun& run, std::ostream& out);

}  // namespace tilewright::cli
