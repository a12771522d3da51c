// Test data, and comparison of results with a reference.
#pragma once

#include <random>
#include <string>

#include "run/to_array.h"
#include "support/accuracy.h"
#include "tests/support/googletest.h"

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

/// Expects the error of `ours` against `exact` to be within allowed_error, times `bounds`.
inline void expect_accurate(const std::string& what, const Tensor& ours, const Array& exact,
                            const Array& plain, DType dtype, double bounds = 1) {
    const double error = largest_error(to_array(ours), exact);
    const double allowed = bounds * allowed_error(plain, exact, dtype);
    EXPECT_TRUE(error <= allowed) << what << ": error " << error << ", allowed " << allowed;
}

}  // namespace tilewright::testing
