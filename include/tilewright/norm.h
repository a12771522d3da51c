// RMSNorm and LayerNorm, forward and backward, on tensors.
#pragma once

#include "tilewright/compiler.h"
#include "tilewright/tensor.h"

namespace TW_API tilewright {

/// Options of the norms.
struct NormOptions {
    double eps = 1e-5;
    Tensor residual = {};  ///< shape and dtype of x; x + residual is normalised
    bool checked = false;  ///< run in the checked mode: bounds, NaN poison, races. Slow
};

/// Results of a norm. `rows` stands for the dimensions of x that are not normalised.
struct NormOutput {
    Tensor y;                  ///< shape of x, in the weight's dtype (x's without a weight)
    Tensor sum;                ///< x + residual in x's dtype; x itself without a residual
    Tensor inverse_deviation;  ///< (rows), 1 / sqrt(variance + eps); f32, or f64 for f64 x
    Tensor mean;               ///< (rows), likewise; layer_norm only
};

struct NormGradients {
    Tensor x;       ///< in x's dtype; the gradient of the residual is the same
    Tensor weight;  ///< in the weight's dtype; undefined without a weight
    Tensor bias;    ///< likewise; layer_norm only
};

/// RMSNorm (Zhang and Sennrich, 2019): y = x / sqrt(mean(x^2) + eps) * weight over the weight's
/// dimensions, which are the last ones of x; without a weight, over the last dimension. x and the
/// weight are each f32, f64, f16 or bf16, with any strides and row length. UserError for other
/// dtypes and shapes.
NormOutput rms_norm(const Tensor& x, const Tensor& weight = {}, const NormOptions& options = {});

/// LayerNorm (Ba et al., 2016): y = (x - mean) / sqrt(variance + eps) * weight + bias. A bias has
/// the shape and dtype of the weight and requires one.
NormOutput layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {},
                      const NormOptions& options = {});

/// Gradients for dy (shape and dtype of y). `forward` is what rms_norm returned; `dsum`, if given,
/// is the gradient of its `sum`. Deterministic: the weight's gradient is summed in a fixed order.
NormGradients rms_norm_backward(const NormOutput& forward, const Tensor& weight, const Tensor& dy,
                                const Tensor& dsum = {}, const NormOptions& options = {});

/// The same for layer_norm.
NormGradients layer_norm_backward(const NormOutput& forward, const Tensor& weight,
                                  const Tensor& bias, const Tensor& dy, const Tensor& dsum = {},
                                  const NormOptions& options = {});

/// The same into the caller's tensors, without gaps, with the dtypes and shapes that the functions
/// above return: allocating costs more than the norm. `out.sum` is used only with a residual.
void rms_norm_into(const NormOutput& out, const Tensor& x, const Tensor& weight = {},
                   const NormOptions& options = {});
void layer_norm_into(const NormOutput& out, const Tensor& x, const Tensor& weight = {},
                     const Tensor& bias = {}, const NormOptions& options = {});
void rms_norm_backward_into(const NormGradients& out, const NormOutput& forward,
                            const Tensor& weight, const Tensor& dy, const Tensor& dsum = {},
                            const NormOptions& options = {});
void layer_norm_backward_into(const NormGradients& out, const NormOutput& forward,
                              const Tensor& weight, const Tensor& bias, const Tensor& dy,
                              const Tensor& dsum = {}, const NormOptions& options = {});

}  // namespace tilewright
