// Errors relative to a reference.
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

double smallest_normal(DType dtype) {
    switch (dtype) {
        case DType::f16:
            return 0x1p-14;
        case DType::f64:
            return 0x1p-1022;
        default:
            return 0x1p-126;
    }
}

DType coarser(DType a, DType b) {
    return epsilon(a) > epsilon(b) ? a : b;
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

double allowed_error(const Array& plain, const Array& exact, DType dtype, const Array& sizes) {
    const auto largest = [](const Array& values) {
        double result = 0;
        for (double x : values.data)
            if (std::isfinite(x)) result = std::max(result, std::abs(x));
        return result;
    };
    const double roundings = dtype == DType::f64 ? 64 : 8;
    return std::max(2 * largest_error(plain, exact),
                    roundings * epsilon(dtype) *
                        std::max({largest(exact), largest(sizes) / 2, smallest_normal(dtype)}));
}

}  // namespace tilewright
