// The check of `tilewright attention`: results against the dense f64 reference.
#pragma once

#include <ostream>
#include <string>

#include "tilewright/attention.h"

namespace tilewright::cli {

/// An attention call and its results; tensors in the layout of the options.
struct AttentionRun {
    Tensor query, key, value;
    AttentionOptions options;
    AttentionOutput output;
    Tensor dout;  ///< undefined: no gradients
    AttentionGradients gradients = {};
    bool on_gpu = false;  ///< products of f32 may then have less precision
};

/// Writes a line for each result, "check NAME largest error E, allowed A: ok" or "WRONG", and
/// returns whether all are ok. support/accuracy.h derives the allowed error from the same
/// computation in the inputs' dtype and the precision of products. Throws as the reference does.
bool check_attention(const AttentionRun& run, std::ostream& out);

/// How much larger rounding errors are where products of f32 have this precision on a GPU than with
/// `ieee`.
double rounding_by_f32(const std::string& precision);

}  // namespace tilewright::cli
