// Values, comparisons and padded buffers for the tests of the kernel tables.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpu/simd/kernels.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr int kDTypes = kNumDTypes;
inline DType dtype_at(int i) {
    return static_cast<DType>(i);
}

/// All tables except the scalar one.
inline std::vector<const Kernels*> vector_tables() {
    std::vector<const Kernels*> tables;
    for (const Kernels* table : available_kernels()) {
        if (table->name != "scalar") tables.push_back(table);
    }
    return tables;
}

/// Contiguous elements of one dtype in memory.
struct Elements {
    DType dtype;
    std::vector<unsigned char> bytes;

    Elements(DType type, std::int64_t count)
        : dtype(type), bytes(static_cast<std::size_t>(count * size_of(type)), 0xA5) {}
    void* data() { return bytes.data(); }
    const void* data() const { return bytes.data(); }
    std::uint64_t get(std::int64_t i) const {
        return ir::read_element(dtype, bytes.data() + i * size_of(dtype));
    }
    void set(std::int64_t i, std::uint64_t value) {
        ir::write_element(dtype, bytes.data() + i * size_of(dtype), value);
    }
};

/// Random elements: ordinary values, small ones (so that integers divide and shift in range), and
/// the dtype's extremes.
inline Elements random_elements(DType dtype, std::int64_t count, std::mt19937_64& random) {
    Elements x(dtype, count);
    const double edges[] = {0.0,
                            -0.0,
                            1.0,
                            -1.0,
                            0.5,
                            1e-40,
                            -3e38,
                            89.0,
                            -104.5,
                            std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()};
    for (std::int64_t i = 0; i < count; ++i) {
        const auto pick = random() % 8;
        const double uniform = std::uniform_real_distribution<double>(-10, 10)(random);
        if (is_float(dtype)) {
            x.set(i, ir::encode(dtype, ir::round_to(dtype, pick == 0   ? edges[random() % 12]
                                                           : pick == 1 ? uniform * 1e5
                                                                       : uniform)));
        } else if (dtype == DType::boolean) {
            x.set(i, random() % 2);
        } else {
            x.set(i, ir::wrap_to(dtype, pick < 3 ? random() : random() % 40 - 8));
        }
    }
    return x;
}

/// Distance of two floats of a dtype in units of the last place; 0 for two NaNs and for +-0,
/// infinite if only one is NaN.
inline double ulp_distance(DType dtype, std::uint64_t a, std::uint64_t b) {
    const double x = ir::decode(dtype, a);
    const double y = ir::decode(dtype, b);
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) == std::isnan(y) ? 0 : INFINITY;
    if (x == y) return 0;
    Elements bits(dtype, 1);
    const auto ordered = [&](std::uint64_t element) {
        bits.set(0, element);
        std::int64_t raw = 0;
        std::memcpy(&raw, bits.data(), static_cast<std::size_t>(size_of(dtype)));
        const int width = 8 * size_of(dtype);
        const std::int64_t magnitude =
            raw & static_cast<std::int64_t>((std::uint64_t{1} << (width - 1)) - 1);
        const bool negative = ((static_cast<std::uint64_t>(raw) >> (width - 1)) & 1) != 0;
        return negative ? -static_cast<long double>(magnitude)
                        : static_cast<long double>(magnitude);
    };
    return static_cast<double>(std::fabs(ordered(a) - ordered(b)));
}

/// Whether `got` equals `want`: exactly for integers, within `ulps` for floats.
inline bool agrees(DType dtype, std::uint64_t got, std::uint64_t want, double ulps) {
    return is_float(dtype) ? ulp_distance(dtype, got, want) <= ulps : got == want;
}

}  // namespace tilewright::cpu
