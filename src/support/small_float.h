// Conversions between f32 and the narrow float formats, rounding to nearest even.
#pragma once

#include <cstdint>

namespace tilewright {

float f16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_f16(float value);
float bf16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_bf16(float value);
float f8e4m3_to_f32(std::uint8_t bits);
std::uint8_t f32_to_f8e4m3(float value);  ///< overflow and infinity give NaN
float f8e5m2_to_f32(std::uint8_t bits);
std::uint8_t f32_to_f8e5m2(float value);

/// f64 is narrowed directly, without double rounding through f32.
std::uint16_t f64_to_f16(double value);
std::uint16_t f64_to_bf16(double value);
std::uint8_t f64_to_f8e4m3(double value);  ///< overflow and infinity give NaN
std::uint8_t f64_to_f8e5m2(double value);

}  // namespace tilewright
