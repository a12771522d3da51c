// Functions of ir/ops.inl that the standard library does not have.
#pragma once

#include <cmath>

#include "tilewright/dtype.h"

namespace tilewright::ir {

/// 1 / (1 + e^-x).
template <typename T>
T logistic(T x) {
    return T{1} / (T{1} + std::exp(-x));
}

/// The value of the float dtype next to x towards y; both are values of it.
double next_after(DType dtype, double x, double y);

}  // namespace tilewright::ir
