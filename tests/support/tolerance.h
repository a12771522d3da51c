// How far results may differ: not at all, in units in the last place, or twice as plain code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ir/evaluate.h"
#include "ir/op.h"
#include "tests/support/googletest.h"

namespace tilewright::testing {

// Compare as `!(error <= tolerance)`, so that NaN never passes. Data movement, integers, booleans
// and the ops that docs/reference/ir.md calls exact or correctly rounded have tolerance 0.

/// Largest error of an elementwise op of f32 or f64 against the exact value, in units in the last
/// place (docs/explanation/numerics.md); 0 for ops that are correctly rounded.
inline double ulp_bound(ir::Op op) {
    const ir::FunctionInfo* const function = ir::function_info(op);
    if (function == nullptr) return 0;
    const double bound = std::max(function->ulps.f32, function->ulps.f64);
    return bound <= 0.5 ? 0 : bound;
}

/// How far two machines may differ in such a result: the reference machine itself is off by up to
/// 1.5 units. Narrow floats are computed in f32 and rounded: a few units of f32 can move them
/// across one rounding boundary.
inline double ulps_between_machines(ir::Op op, DType dtype) {
    if (ulp_bound(op) == 0) return 0;
    return size_of(dtype) < 4 ? 1 : std::floor(ulp_bound(op) + 1.5);
}

/// Distance of two stored elements of a float dtype in representable values; 0 for two NaNs and for
/// zeros of either sign, infinity if only one is NaN.
inline double ulp_distance(DType dtype, const void* a, const void* b) {
    const double values[] = {ir::decode(dtype, ir::read_element(dtype, a)),
                             ir::decode(dtype, ir::read_element(dtype, b))};
    if (std::isnan(values[0]) || std::isnan(values[1])) {
        const bool both = std::isnan(values[0]) && std::isnan(values[1]);
        return both ? 0 : std::numeric_limits<double>::infinity();
    }
    // Floats are sign and magnitude: neighbours differ by 1 in the bits below the sign.
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

/// For attention, norms and other long computations, the error against the f64 reference may be
/// this many times that of a plain computation in the same dtype.
inline constexpr double kPlainErrorFactor = 2;

}  // namespace tilewright::testing
