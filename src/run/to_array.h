// Tensors in the form that the references take.
#pragma once

#include "support/array.h"
#include "tilewright/tensor.h"

namespace tilewright {

/// The values of a tensor as a dense f64 array; an undefined one gives a default Array.
inline Array to_array(const Tensor& tensor) {
    Array result;
    if (!tensor.defined()) return result;
    result.shape = tensor.shape();
    result.data = tensor.to_vector<double>();
    return result;
}

}  // namespace tilewright
