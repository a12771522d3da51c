// Tensors as the references see them.
#pragma once

#include "support/array.h"
#include "tilewright/tensor.h"

namespace tilewright {

/// The values of a tensor as a dense f64 array; not given for an undefined tensor.
inline Array to_array(const Tensor& tensor) {
    Array result;
    if (!tensor.defined()) return result;
    result.shape = tensor.shape();
    result.data = tensor.to_vector<double>();
    return result;
}

}  // namespace tilewright
