// The norms as tile programs: each walks over rows, and over a long row in chunks.
#pragma once

#include <compare>
#include <cstdint>

#include "tilewright/run.h"

namespace tilewright::norm {

/// What the programs are specialised by; the number of rows comes with the call.
struct Options {
    bool layer = false;  ///< LayerNorm: subtract the mean
    bool weight = false, bias = false;
    bool residual = false;  ///< forward: an input to add; backward: a gradient to add
    std::int64_t n = 0;     ///< elements of a row
    double eps = 0;
    DType output = f32;  ///< of y
    bool interpret = false;
    auto operator<=>(const Options&) const = default;
};

/// Inputs x (rows, n), weight (n), bias (n), residual (rows, n), absent where the options say so.
/// Outputs y (rows, n), inverse deviation (rows), then mean (rows) if `layer`, then x + residual
/// (rows, n) if `residual`.
Call forward(const Options& options);

/// Programs of the backward pass, hence parts of the weight's gradient.
inline constexpr std::int64_t kBackwardParts = 64;

/// Inputs x (rows, n), dy (rows, n), inverse deviation (rows), mean (rows), weight (n), dsum (rows,
/// n). Outputs dx (rows, n), then the parts of the weight's and of the bias's gradient (parts, n)
/// if there are any, f32 or f64.
Call backward(const Options& options);

/// Sum of (parts, n) over the parts, in order, in `dtype`.
Call sum_parts(DType dtype, bool interpret);

}  // namespace tilewright::norm
