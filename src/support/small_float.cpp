// Conversions between f32 and the narrow float formats, with one generic rounding routine.
#include "support/small_float.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tilewright {
namespace {

struct Format {
    int exponent_bits;
    int mantissa_bits;
    bool has_infinity;  // false for E4M3, whose top exponent has numbers and one NaN pattern
};

constexpr Format kF16{5, 10, true};
constexpr Format kBf16{8, 7, true};
constexpr Format kF8e4m3{4, 3, false};
constexpr Format kF8e5m2{5, 2, true};

// Narrows `value` to `format`, rounding to nearest even. f64 holds every f32, so callers with f32
// get no second rounding.
std::uint32_t encode(double value, Format format) {
    const int bias = (1 << (format.exponent_bits - 1)) - 1;
    const std::uint32_t sign =
        std::signbit(value) ? 1u << (format.exponent_bits + format.mantissa_bits) : 0u;
    const std::uint32_t top = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
    const std::uint32_t nan = format.has_infinity ? top | (1u << (format.mantissa_bits - 1))
                                                  : top | ((1u << format.mantissa_bits) - 1);
    const std::uint32_t overflow = format.has_infinity ? top : nan;
    if (std::isnan(value)) return sign | nan;
    if (std::isinf(value)) return sign | overflow;
    const double magnitude = std::fabs(value);
    if (magnitude == 0) return sign;
    // Scales so that a unit in the last place is 1, rounds to even, and reads off the encoding, in
    // which a carry into the exponent comes out right by construction.
    const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
    const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
    const auto mantissa = static_cast<std::uint32_t>(units);
    const std::uint32_t hidden = 1u << format.mantissa_bits;
    std::uint32_t bits = mantissa;
    if (mantissa >= hidden) {
        bits = (static_cast<std::uint32_t>(exponent + bias) << format.mantissa_bits) +
               (mantissa - hidden);
    }
    const std::uint32_t largest = format.has_infinity ? top - 1 : nan - 1;
    return sign | (bits > largest ? overflow : bits);
}

double decode(std::uint32_t bits, Format format) {
    const int bias = (1 << (format.exponent_bits - 1)) - 1;
    const int width = format.exponent_bits + format.mantissa_bits;
    const bool negative = (bits >> width) & 1u;
    const std::uint32_t exponent =
        (bits >> format.mantissa_bits) & ((1u << format.exponent_bits) - 1);
    const std::uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
    const std::uint32_t top = (1u << format.exponent_bits) - 1;
    double magnitude = 0;
    if (exponent == top && format.has_infinity) {
        magnitude = mantissa != 0 ? NAN : INFINITY;
    } else if (exponent == top && mantissa == (1u << format.mantissa_bits) - 1) {
        magnitude = NAN;
    } else if (exponent == 0) {
        magnitude = std::ldexp(mantissa, 1 - bias - format.mantissa_bits);
    } else {
        magnitude = std::ldexp(mantissa | (1u << format.mantissa_bits),
                               static_cast<int>(exponent) - bias - format.mantissa_bits);
    }
    return negative ? -magnitude : magnitude;
}

}  // namespace

float f16_to_f32(std::uint16_t bits) {
    return static_cast<float>(decode(bits, kF16));
}
std::uint16_t f32_to_f16(float value) {
    return static_cast<std::uint16_t>(encode(value, kF16));
}
float bf16_to_f32(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
std::uint16_t f32_to_bf16(float value) {
    return static_cast<std::uint16_t>(encode(value, kBf16));
}
float f8e4m3_to_f32(std::uint8_t bits) {
    return static_cast<float>(decode(bits, kF8e4m3));
}
std::uint8_t f32_to_f8e4m3(float value) {
    return static_cast<std::uint8_t>(encode(value, kF8e4m3));
}
float f8e5m2_to_f32(std::uint8_t bits) {
    return static_cast<float>(decode(bits, kF8e5m2));
}
std::uint8_t f32_to_f8e5m2(float value) {
    return static_cast<std::uint8_t>(encode(value, kF8e5m2));
}
std::uint16_t f64_to_f16(double value) {
    return static_cast<std::uint16_t>(encode(value, kF16));
}
std::uint16_t f64_to_bf16(double value) {
    return static_cast<std::uint16_t>(encode(value, kBf16));
}
std::uint8_t f64_to_f8e4m3(double value) {
    return static_cast<std::uint8_t>(encode(value, kF8e4m3));
}
std::uint8_t f64_to_f8e5m2(double value) {
    return static_cast<std::uint8_t>(encode(value, kF8e5m2));
}

}  // namespace tilewright
