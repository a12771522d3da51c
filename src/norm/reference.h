// RMSNorm and LayerNorm, forward and backward: slow and obvious, the reference for the kernels.
#pragma once

#include "support/array.h"

namespace tilewright::norm {

/// y = (x - mean) * r * weight + bias over rows of x (rows, n), with r = 1 / sqrt(variance + eps);
/// RMSNorm has mean 0 and no bias. Missing arrays count as weight 1, bias 0, residual 0.
struct ReferenceInput {
    Array x;         ///< (rows, n)
    Array weight;    ///< (n)
    Array bias;      ///< (n), layer_norm only
    Array residual;  ///< (rows, n), added to x first
    double eps = 1e-5;
    /// f64: the reference. Another float type: the plain computation in it, with sums in f32 and
    /// every array rounded to it.
    DType arithmetic = DType::f64;
};

struct ReferenceOutput {
    Array y;                  ///< (rows, n)
    Array sum;                ///< (rows, n): x + residual
    Array mean;               ///< (rows), 0 for rms_norm
    Array inverse_deviation;  ///< (rows)
};

struct ReferenceGradients {
    Array x;             ///< (rows, n); the residual's gradient is the same
    Array weight, bias;  ///< (n)
};

/// UserError if shapes do not fit.
ReferenceOutput reference_rms_norm(const ReferenceInput& input);
ReferenceOutput reference_layer_norm(const ReferenceInput& input);

/// Gradients for dy (rows, n) and, if given, dsum (rows, n), the gradient of x + residual.
ReferenceGradients reference_rms_norm_backward(const ReferenceInput& input, const Array& dy,
                                               const Array& dsum = {});
ReferenceGradients reference_layer_norm_backward(const ReferenceInput& input, const Array& dy,
                                                 const Array& dsum = {});

}  // namespace tilewright::norm
