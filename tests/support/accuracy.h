// Comparing results with a reference: at most twice the error of the plain computation.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "run/to_array.h"

namespace tilewright::testing {

/// Normal random values rounded to `dtype`.
inline Tensor random_tensor(DType dtype, Tensor::Dims shape, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    std::int64_t size = 1;
    for (std::int64_t dim : shape) size *= dim;
    std::vector<double> values(static_cast<std::size_t>(size));
    for (double& x : values) x = normal(generator);
    return Tensor::from_vector(values, std::move(shape), dtype);
}

/// Distance between 1 and the next value of a float dtype.
inline double epsilon(DType dtype) {
    switch (dtype) {
        case DType::f16:
            return 0x1p-10;
        case DType::bf16:
            return 0x1p-7;
        case DType::f32:
            return 0x1p-23;
        default:
            return 0x1p-52;
    }
}

/// Largest difference; infinity for different shapes, NaN where only one side has it, or unequal
/// infinities.
inline double largest_error(const Array& a, const Array& b) {
    if (a.shape != b.shape) return INFINITY;
    double error = 0;
    for (std::size_t i = 0; i < a.data.size(); ++i) {
        if (a.data[i] == b.data[i]) continue;
        const double difference = std::abs(a.data[i] - b.data[i]);
        if (!(difference <= error)) error = std::isnan(difference) ? INFINITY : difference;
    }
    return error;
}

/// Expects the error of `ours` against `exact` to be at most twice that of `plain`, the same
/// computation done plainly in `dtype`. A few roundings of the largest value (or of 1, the size of
/// random inputs) are always allowed: small cases are a matter of luck, and the reference itself
/// rounds to f64.
inline void expect_accurate(const std::string& what, const Tensor& ours, const Array& exact,
                            const Array& plain, DType dtype) {
    double largest = 1;
    for (double x : exact.data)
        if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    const double error = largest_error(to_array(ours), exact);
    const double allowed = std::max(2 * largest_error(plain, exact),
                                    (dtype == DType::f64 ? 64 : 8) * epsilon(dtype) * largest);
    EXPECT_TRUE(error <= allowed) << what << ": error " << error << ", allowed " << allowed;
}

}  // namespace tilewright::testing
