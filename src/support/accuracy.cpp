// Errors against a reference.
#include "support/accuracy.h"

#include <algorithm>
#include <cmath>

namespace tilewright {

double epsilon(DType dtype) {
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

double largest_error(const Array& a, const Array& b) {
    if (a.shape != b.shape) return INFINITY;
    double error = 0;
    for (std::size_t i = 0; i < a.data.size(); ++i) {
        if (a.data[i] == b.data[i] || (std::isnan(a.data[i]) && std::isnan(b.data[i]))) continue;
        const double difference = std::abs(a.data[i] - b.data[i]);
        if (!(difference <= error)) error = std::isnan(difference) ? INFINITY : difference;
    }
    return error;
}

double allowed_error(const Array& plain, const Array& exact, DType dtype) {
    double largest = 0;
    for (double x : exact.data)
        if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    const double roundings = dtype == DType::f64 ? 64 : 8;
    return std::max(2 * largest_error(plain, exact), roundings * epsilon(dtype) * largest);
}

}  // namespace tilewright
