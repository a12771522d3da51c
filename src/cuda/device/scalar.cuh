// Arithmetic of the tile IR that C++ operators do not provide: docs/reference/ir.md, section 4, as
// functions.
#pragma once

#include "cuda/device/next_bits.cuh"
#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/math.cuh"

namespace twd::scalar {

// Unsigned counterpart of an integer type: arithmetic on it wraps.
template <typename T>
struct UnsignedOf {
    using Type = T;
};
template <>
struct UnsignedOf<signed char> {
    using Type = u8;
};
template <>
struct UnsignedOf<short> {
    using Type = u16;
};
template <>
struct UnsignedOf<int> {
    using Type = u32;
};
template <>
struct UnsignedOf<i64> {
    using Type = u64;
};
template <typename T>
using Unsigned = typename UnsignedOf<T>::Type;
template <typename T>
constexpr bool kSigned = static_cast<T>(-1) < static_cast<T>(0);
template <typename T>
constexpr T kLowest = kSigned<T> ? static_cast<T>(1ull << (8 * sizeof(T) - 1)) : T{0};

template <typename T>
TW_DEVICE T wrapping_add(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
}
template <typename T>
TW_DEVICE T wrapping_sub(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
}
template <typename T>
TW_DEVICE T wrapping_mul(T a, T b) {  // u64, because u16 would be promoted to int
    return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b));
}
template <typename T>
TW_DEVICE T divide(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if (kSigned<T> && b == static_cast<T>(-1)) return wrapping_sub(T{0}, a);
    return static_cast<T>(a / b);
}
template <typename T>
TW_DEVICE T remainder(T a, T b) {
    if (b == 0) return a;
    if (kSigned<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
}
template <typename T>
TW_DEVICE T floor_divide(T a, T b) {
    const T quotient = divide(a, b);
    const bool inexact = b != 0 && remainder(a, b) != 0;
    return static_cast<T>(quotient - (inexact && (a < 0) != (b < 0) ? 1 : 0));
}
template <typename T>
TW_DEVICE T floor_modulo(T a, T b) {
    const T rest = remainder(a, b);
    return b != 0 && rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
}
TW_DEVICE float floor_divide(float a, float b) {
    return floorf(a / b);
}
TW_DEVICE double floor_divide(double a, double b) {
    return floor(a / b);
}
TW_DEVICE float remainder(float a, float b) {
    return fmodf(a, b);
}
TW_DEVICE double remainder(double a, double b) {
    return fmod(a, b);
}
template <typename T>
TW_DEVICE T float_floor_modulo(T a, T b) {
    const T rest = remainder(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
TW_DEVICE float floor_modulo(float a, float b) {
    return float_floor_modulo(a, b);
}
TW_DEVICE double floor_modulo(double a, double b) {
    return float_floor_modulo(a, b);
}

/// Shift counts are unsigned; counts of the width or more shift everything out.
template <typename T>
TW_DEVICE T shift_left(T a, T count) {
    const u64 n = static_cast<u64>(static_cast<Unsigned<T>>(count));
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<u64>(a) << n);
}
template <typename T>
TW_DEVICE T shift_right(T a, T count) {
    const u64 n = static_cast<u64>(static_cast<Unsigned<T>>(count));
    if (n >= 8 * sizeof(T)) return kSigned<T> && a < 0 ? static_cast<T>(-1) : T{0};
    return static_cast<T>(a >> n);
}

template <typename T>
TW_DEVICE T min(T a, T b) {
    return b < a ? b : a;
}
template <typename T>
TW_DEVICE T max(T a, T b) {
    return a < b ? b : a;
}
TW_DEVICE float min(float a, float b) {
    return ptx::min_nan(a, b);
}
TW_DEVICE float max(float a, float b) {
    return ptx::max_nan(a, b);
}
TW_DEVICE double min(double a, double b) {
    return b != b || b < a ? b : a;
}
TW_DEVICE double max(double a, double b) {
    return b != b || a < b ? b : a;
}
template <typename T>
TW_DEVICE T abs(T a) {
    return a < 0 ? wrapping_sub(T{0}, a) : a;
}
TW_DEVICE float abs(float a) {
    return fabsf(a);
}
TW_DEVICE double abs(double a) {
    return fabs(a);
}
template <typename T>
TW_DEVICE T sign(T a) {  // NaN and zeros of either sign are themselves
    return a > 0 ? T{1} : a < 0 ? static_cast<T>(-1) : a;
}

TW_DEVICE float logistic(float a) {
    return 1.0f / (1.0f + expf(-a));
}
TW_DEVICE double logistic(double a) {
    return 1.0 / (1.0 + exp(-a));
}
TW_DEVICE float exp_approx(float a) {
    return ptx::exp2_approx(a * 1.4426950408889634f);
}
TW_DEVICE float log_approx(float a) {
    return ptx::log2_approx(a) * 0.6931471805599453f;
}
TW_DEVICE float logistic_approx(float a) {
    return ptx::reciprocal_approx(1.0f + exp_approx(-a));
}

// Conversions of floats truncate and saturate, and NaN gives 0, as cvt.rzi does; a C++ cast would
// be undefined.
TW_DEVICE i64 to_i64(float a) {
    return a != a ? 0 : __float2ll_rz(a);
}
TW_DEVICE i64 to_i64(double a) {
    return a != a ? 0 : __double2ll_rz(a);
}
TW_DEVICE u64 to_u64(float a) {
    return a != a ? 0 : __float2ull_rz(a);
}
TW_DEVICE u64 to_u64(double a) {
    return a != a ? 0 : __double2ull_rz(a);
}
template <typename T, typename Float>
TW_DEVICE T to_integer(Float a) {
    if constexpr (sizeof(T) == 8) {
        if constexpr (kSigned<T>) {
            return to_i64(a);
        } else {
            return to_u64(a);
        }
    } else {
        constexpr i64 kLow = static_cast<i64>(kLowest<T>);
        constexpr i64 kHigh =
            static_cast<i64>((1ull << (8 * sizeof(T) - (kSigned<T> ? 1 : 0))) - 1);
        return static_cast<T>(min(max(to_i64(a), kLow), kHigh));
    }
}

/// A float rounded to a 16-bit float type.
TW_DEVICE float round_to(F16, float a) {
    return ptx::low(F16{}, ptx::pack(F16{}, a, 0.0f));
}
TW_DEVICE float round_to(Bf16, float a) {
    return ptx::low(Bf16{}, ptx::pack(Bf16{}, a, 0.0f));
}

/// The neighbour of a, in a 16-bit float type, in the direction of b.
template <typename Tag>
TW_DEVICE float next_after(Tag tag, float a, float b) {
    if (a != a || b != b) return a + b;
    return a == b ? b : ptx::low(tag, next_bits(ptx::to_bits(tag, a), a < b));
}

/// Loads of captured arrays: data that no thread writes while the kernel runs.
TW_DEVICE float load(F16, const u16* address) {
    return ptx::low(F16{}, static_cast<u32>(__ldg(address)));
}
TW_DEVICE float load(Bf16, const u16* address) {
    return ptx::low(Bf16{}, static_cast<u32>(__ldg(address)));
}
/// The element at an even index, in an array aligned to pairs, and the one after it.
TW_DEVICE float2 load_pair(const float* address) {
    return __ldg(reinterpret_cast<const float2*>(address));
}
TW_DEVICE int2 load_pair(const int* address) {
    return __ldg(reinterpret_cast<const int2*>(address));
}
template <typename Tag>
TW_DEVICE float2 load_pair(Tag tag, const u16* address) {
    const u32 both = __ldg(reinterpret_cast<const u32*>(address));
    return make_float2(ptx::low(tag, both), ptx::high(tag, both));
}

/// First word of philox4x32-10 with this key and counter words (low, high, 0, 0).
TW_DEVICE u32 philox(u64 key, u64 counter) {
    u32 k0 = static_cast<u32>(key), k1 = static_cast<u32>(key >> 32);
    u32 c0 = static_cast<u32>(counter), c1 = static_cast<u32>(counter >> 32), c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u64 a = static_cast<u64>(0xd2511f53u) * c0, b = static_cast<u64>(0xcd9e8d57u) * c2;
        c0 = static_cast<u32>(b >> 32) ^ c1 ^ k0;
        c2 = static_cast<u32>(a >> 32) ^ c3 ^ k1;
        c1 = static_cast<u32>(b);
        c3 = static_cast<u32>(a);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c0;
}

}  // namespace twd::scalar
