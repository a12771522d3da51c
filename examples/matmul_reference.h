// A plain matrix product as the reference of examples.
#pragma once

#include <functional>

#include "tilewright/tensor.h"

namespace examples {

/// Element (i, j) of x * y for contiguous f32 [m, k] and [k, n].
inline double matmul_element(const tilewright::Tensor& x, const tilewright::Tensor& y,
                             std::int64_t i, std::int64_t j) {
    const std::int64_t k_size = x.dim(1), n = y.dim(1);
    const float* row = x.data<float>() + i * k_size;
    const float* column = y.data<float>() + j;
    double sum = 0;
    for (std::int64_t k = 0; k < k_size; ++k) sum += double{row[k]} * double{column[k * n]};
    return sum;
}

}  // namespace examples
