// Emulated functions of one instruction.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace tw::ptx {

inline float exp2_approx(float x) {
    return std::exp2(x);
}
inline float log2_approx(float x) {
    return std::log2(x);
}
inline float tanh_approx(float x) {
    return std::tanh(x);
}
inline float reciprocal_approx(float x) {
    return 1.0f / x;
}
inline float rsqrt_approx(float x) {
    return 1.0f / std::sqrt(x);
}
inline float max_nan(float a, float b) {
    return a != a || b != b ? NAN : a < b ? b : a;
}
inline float min_nan(float a, float b) {
    return a != a || b != b ? NAN : b < a ? b : a;
}

}  // namespace tw::ptx
