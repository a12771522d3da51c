// How far results may differ: exact, units in the last place, or twice the error of plain code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ir/evaluate.h"
#include "ir/op.h"

namespace tilewright::testing {

// Compare as `!(error <= tolerance)`, so that NaN never passes. Data movement, integers, booleans
// and the ops that docs/ir.md calls exact or correctly rounded have tolerance 0.

/// Largest error of an elementwise op of f32 or f64 against the reference machine, in units in the
/// last place of the result. Narrower floats are computed in f32 and rounded: `narrow_ulp_bound`.
inline double ulp_bound(ir::Op op, bool approx = false) {
    switch (op) {
        case ir::Op::exp:
        case ir::Op::exp2:
        case ir::Op::log:
        case ir::Op::log2:
            return approx ? 16 : 2;
        case ir::Op::expm1:
        case ir::Op::log1p:
        case ir::Op::tanh:
        case ir::Op::logistic:
        case ir::Op::erf:
        case ir::Op::sin:
        case ir::Op::cos:
        case ir::Op::rsqrt:
        case ir::Op::pow:
            return approx ? 16 : 4;
        default:
            return 0;
    }
}

/// An error of a few f32 units can move a value across one rounding boundary of f16, bf16 or f8.
inline double narrow_ulp_bound(ir::Op op, bool approx = false) {
    return ulp_bound(op, approx) > 0 ? 1 : 0;
}

/// Distance of two stored elements of a float dtype in representable values; 0 for two NaNs and for
/// zeros of either sign, infinity when only one is NaN.
inline double ulp_distance(DType dtype, const void* a, const void* b) {
    const double values[] = {ir::decode(dtype, ir::read_element(dtype, a)),
                             ir::decode(dtype, ir::read_element(dtype, b))};
    if (std::isnan(values[0]) || std::isnan(values[1])) {
        const bool both = std::isnan(values[0]) && std::isnan(values[1]);
        return both ? 0 : std::numeric_limits<double>::infinity();
    }
    // Sign and magnitude: neighbours differ by 1 in the bits below the sign.
    const auto place = [dtype](const void* element) {
        std::int64_t magnitude = 0;
        std::copy_n(static_cast<const char*>(element), size_of(dtype),
                    reinterpret_cast<char*>(&magnitude));
        const std::int64_t sign = std::int64_t{1} << (8 * size_of(dtype) - 1);
        const bool negative = (magnitude & sign) != 0;
        magnitude &= ~sign;
        return negative ? -static_cast<double>(magnitude) : static_cast<double>(magnitude);
    };
    return std::abs(place(a) - place(b));
}

/// Attention, norms and other long computations: the error against the f64 reference may be this
/// many times that of the same computation done plainly in the same dtype.
inline constexpr double kPlainErrorFactor = 2;

}  // namespace tilewright::testing
