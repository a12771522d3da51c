// Shared by all examples: test data, and a comparison with plain C++ that prints its result.
#pragma once

#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

#include "tilewright/tilewright.h"

namespace examples {

/// Repeatable values in [-1, 1).
inline tilewright::Tensor random_tensor(std::vector<std::int64_t> shape, std::uint32_t seed) {
    tilewright::Tensor result = tilewright::Tensor::empty(tilewright::f32, std::move(shape));
    float* data = result.data<float>();
    std::uint32_t state = seed * 747796405u + 2891336453u;
    for (std::int64_t i = 0; i < result.size(); ++i) {
        state = state * 1664525u + 1013904223u;
        data[i] = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1.0f;
    }
    return result;
}

/// Compares element i of a contiguous result with expected(i) for every i. Prints the largest error
/// and returns the program's exit status: 0 if every error is within the tolerance.
inline int check(const char* name, const tilewright::Tensor& result, double tolerance,
                 const std::function<double(std::int64_t)>& expected) {
    const std::vector<double> values = result.to_vector<double>();
    double worst = 0;
    bool ok = true;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double error = std::abs(values[i] - expected(static_cast<std::int64_t>(i)));
        if (!(error <= tolerance)) ok = false;  // NaN fails too
        if (error > worst) worst = error;
    }
    std::printf("%s: %s, %zu elements, largest error %.3g: %s\n", name, result.type_name().c_str(),
                values.size(), worst, ok ? "ok" : "WRONG");
    return ok ? 0 : 1;
}

}  // namespace examples
