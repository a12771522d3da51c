// Functions that operations need and the standard library lacks.
#pragma once

#include <cmath>

#include "tilewright/dtype.h"

namespace tilewright::ir {

/// 1 / (1 + e^-x).
template <typename T>
T logistic(T x) {
    return T{1} / (T{1} + std::exp(-x));
}

/// log(e^a + e^b) without overflow; NaN propagates.
template <typename T>
T log_add_exp(T a, T b) {
    if (std::isnan(a) || std::isnan(b)) return a + b;
    const T high = a < b ? b : a, low = a < b ? a : b;
    // The difference of equal infinities is NaN.
    if (std::isinf(high)) return high;
    return high + std::log1p(std::exp(low - high));
}

/// The value of the float dtype after x towards y; both are values of it.
double next_after(DType dtype, double x, double y);

}  // namespace tilewright::ir
