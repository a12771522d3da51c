// The scalar meaning of the tile IR's elementwise operations, by the names of
// docs/reference/ops.md.
#pragma once

#include "cuda/device/next_bits.cuh"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/tile/element.cuh"

namespace twd::ops {

template <class T>
struct UnsignedOf {
    using Type = T;
};
template <>
struct UnsignedOf<i8> {
    using Type = u8;
};
template <>
struct UnsignedOf<i16> {
    using Type = u16;
};
template <>
struct UnsignedOf<i32> {
    using Type = u32;
};
template <>
struct UnsignedOf<i64> {
    using Type = u64;
};
template <class T>
using Unsigned = typename UnsignedOf<T>::Type;
template <class T>
inline constexpr bool kSigned = static_cast<T>(-1) < static_cast<T>(0);
template <class T>
inline constexpr int kWidth = 8 * static_cast<int>(sizeof(T));

// ---- Integers wrap; division follows XLA.

template <class T>
TW_DEVICE T neg(T a) {
    return static_cast<T>(0u - static_cast<Unsigned<T>>(a));
}
template <class T>
TW_DEVICE T add(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
}
template <class T>
TW_DEVICE T sub(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
}
template <class T>
TW_DEVICE T mul(T a, T b) {
    // 1u: the product of two u16 would overflow int.
    return static_cast<T>(1u * static_cast<Unsigned<T>>(a) * static_cast<Unsigned<T>>(b));
}
template <class T>
TW_DEVICE T abs(T a) {
    return a < T(0) ? neg(a) : a;
}
template <class T>
TW_DEVICE T sign(T a) {
    return static_cast<T>((a > T(0)) - (a < T(0)));
}
template <class T>
TW_DEVICE T bitwise_not(T a) {
    return static_cast<T>(~a);
}
TW_DEVICE bool bitwise_not(bool a) {
    return !a;
}
template <class T>
TW_DEVICE T div(T a, T b) {
    if (b == T(0)) return static_cast<T>(-1);
    if (kSigned<T> && b == static_cast<T>(-1)) return neg(a);
    return static_cast<T>(a / b);
}
template <class T>
TW_DEVICE T rem(T a, T b) {
    if (b == T(0)) return a;
    if (kSigned<T> && b == static_cast<T>(-1)) return T(0);
    return static_cast<T>(a % b);
}
template <class T>
TW_DEVICE bool truncated_up(T a, T b) {
    if (!kSigned<T> || b == T(0)) return false;
    const T rest = rem(a, b);
    return rest != T(0) && (rest < T(0)) != (b < T(0));
}
template <class T>
TW_DEVICE T floordiv(T a, T b) {
    return truncated_up(a, b) ? sub(div(a, b), T(1)) : div(a, b);
}
template <class T>
TW_DEVICE T floormod(T a, T b) {
    return truncated_up(a, b) ? add(rem(a, b), b) : rem(a, b);
}
template <class T>
TW_DEVICE T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
TW_DEVICE T max(T a, T b) {
    if constexpr (kSigned<T> && sizeof(T) <= 4) {
        // ptxas up to 13.3 turns max(min(x, n), 0) into one VIMNMX.RELU, after which dependent code
        // is sometimes wrong. It does not do so with an unsigned maximum.
        constexpr u32 kSign = 0x80000000u;
        return static_cast<T>(ptx::max_unsigned(static_cast<u32>(static_cast<i32>(a)) ^ kSign,
                                                static_cast<u32>(static_cast<i32>(b)) ^ kSign) ^
                              kSign);
    } else {
        return a < b ? b : a;
    }
}
template <class T>
TW_DEVICE T shift_left(T a, T by) {
    const auto count = static_cast<Unsigned<T>>(by);
    return count >= kWidth<T> ? T(0) : static_cast<T>(static_cast<Unsigned<T>>(a) << count);
}
template <class T>
TW_DEVICE T shift_right(T a, T by) {
    const auto count = static_cast<Unsigned<T>>(by);
    if (count >= kWidth<T>) return kSigned<T> && a < T(0) ? static_cast<T>(-1) : T(0);
    return static_cast<T>(a >> count);
}

// ---- Floats. (Narrow floats arrive as f32; the caller rounds.)

TW_DEVICE float min(float a, float b) {
    return ptx::min_nan(a, b);
}
TW_DEVICE float max(float a, float b) {
    return ptx::max_nan(a, b);
}
TW_DEVICE double min(double a, double b) {
    return a != a || b != b ? a + b : b < a ? b : a;
}
TW_DEVICE double max(double a, double b) {
    return a != a || b != b ? a + b : a < b ? b : a;
}
template <class T>
TW_DEVICE T clamp(T value, T low, T high) {
    return min(max(value, low), high);
}
TW_DEVICE float abs(float a) {
    return ::fabsf(a);
}
TW_DEVICE double abs(double a) {
    return ::fabs(a);
}
template <class T>
TW_DEVICE T float_sign(T a) {
    return a != a || a == T(0) ? a : a < T(0) ? T(-1) : T(1);
}
TW_DEVICE float sign(float a) {
    return float_sign(a);
}
TW_DEVICE double sign(double a) {
    return float_sign(a);
}

#define TW_FLOAT_FUNCTION(name, single, twice) \
    TW_DEVICE float name(float a) {            \
        return single;                         \
    }                                          \
    TW_DEVICE double name(double a) {          \
        return twice;                          \
    }
TW_FLOAT_FUNCTION(exp, ::expf(a), ::exp(a))
TW_FLOAT_FUNCTION(exp2, ::exp2f(a), ::exp2(a))
TW_FLOAT_FUNCTION(expm1, ::expm1f(a), ::expm1(a))
TW_FLOAT_FUNCTION(log, ::logf(a), ::log(a))
TW_FLOAT_FUNCTION(log2, ::log2f(a), ::log2(a))
TW_FLOAT_FUNCTION(log1p, ::log1pf(a), ::log1p(a))
TW_FLOAT_FUNCTION(tanh, ::tanhf(a), ::tanh(a))
TW_FLOAT_FUNCTION(logistic, 1.0f / (1.0f + ::expf(-a)), 1.0 / (1.0 + ::exp(-a)))
TW_FLOAT_FUNCTION(erf, ::erff(a), ::erf(a))
TW_FLOAT_FUNCTION(sin, ::sinf(a), ::sin(a))
TW_FLOAT_FUNCTION(cos, ::cosf(a), ::cos(a))
TW_FLOAT_FUNCTION(sqrt, ::sqrtf(a), ::sqrt(a))
TW_FLOAT_FUNCTION(rsqrt, 1.0f / ::sqrtf(a), 1.0 / ::sqrt(a))
TW_FLOAT_FUNCTION(floor, ::floorf(a), ::floor(a))
TW_FLOAT_FUNCTION(ceil, ::ceilf(a), ::ceil(a))
TW_FLOAT_FUNCTION(round, ::rintf(a), ::rint(a))
// The hardware's approximations; f64 has none.
TW_FLOAT_FUNCTION(exp_approx, ptx::exp2_approx(a * 1.4426950408889634f), ::exp(a))
TW_FLOAT_FUNCTION(exp2_approx, ptx::exp2_approx(a), ::exp2(a))
TW_FLOAT_FUNCTION(log_approx, ptx::log2_approx(a) * 0.6931471805599453f, ::log(a))
TW_FLOAT_FUNCTION(log2_approx, ptx::log2_approx(a), ::log2(a))
TW_FLOAT_FUNCTION(tanh_approx, ptx::tanh_approx(a), ::tanh(a))
TW_FLOAT_FUNCTION(logistic_approx,
                  ptx::reciprocal_approx(1.0f + ptx::exp2_approx(a * -1.4426950408889634f)),
                  1.0 / (1.0 + ::exp(-a)))
TW_FLOAT_FUNCTION(sin_approx, ::__sinf(a), ::sin(a))
TW_FLOAT_FUNCTION(cos_approx, ::__cosf(a), ::cos(a))
TW_FLOAT_FUNCTION(sqrt_approx, ::sqrtf(a), ::sqrt(a))
TW_FLOAT_FUNCTION(rsqrt_approx, ptx::rsqrt_approx(a), 1.0 / ::sqrt(a))
#undef TW_FLOAT_FUNCTION

TW_DEVICE float fma(float a, float b, float c) {
    return ::fmaf(a, b, c);
}
TW_DEVICE double fma(double a, double b, double c) {
    return ::fma(a, b, c);
}
TW_DEVICE float pow(float a, float b) {
    return ::powf(a, b);
}
TW_DEVICE double pow(double a, double b) {
    return ::pow(a, b);
}
TW_DEVICE float floordiv(float a, float b) {
    return ::floorf(a / b);
}
TW_DEVICE double floordiv(double a, double b) {
    return ::floor(a / b);
}
TW_DEVICE float rem(float a, float b) {
    return ::fmodf(a, b);
}
TW_DEVICE double rem(double a, double b) {
    return ::fmod(a, b);
}
TW_DEVICE float floormod(float a, float b) {
    const float rest = ::fmodf(a, b);
    if (rest != 0 && (rest < 0) != (b < 0)) return rest + b;
    return rest == 0 ? ::copysignf(0.0f, b) : rest;
}
TW_DEVICE double floormod(double a, double b) {
    const double rest = ::fmod(a, b);
    if (rest != 0 && (rest < 0) != (b < 0)) return rest + b;
    return rest == 0 ? ::copysign(0.0, b) : rest;
}
TW_DEVICE bool isnan(float a) {
    return a != a;
}
TW_DEVICE bool isnan(double a) {
    return a != a;
}

/// The neighbour of a, in a narrow float type, in the direction of b.
template <class S>
TW_DEVICE float next_after(S type, float a, float b) {
    if (a != a || b != b) return a + b;
    return a == b ? b : widen(S{next_bits(narrow(type, a).bits, a < b)});
}

// ---- Conversions: cast<S>(x) is the register value of element type S.

/// A double as an f32 that rounds to any narrower format as the double itself would: truncated,
/// with a sticky last bit.
TW_DEVICE float round_to_odd(double a) {
    const float nearest = __double2float_rz(a);
    if (static_cast<double>(nearest) == a || a != a) return nearest;
    return __uint_as_float(__float_as_uint(nearest) | 1);
}
TW_DEVICE float round_to_odd(float a) {
    return a;
}
TW_DEVICE float round_to_odd(bool a) {
    return a ? 1.0f : 0.0f;
}
template <class T>
TW_DEVICE float round_to_odd(T a) {
    if constexpr (kSigned<T>) {
        const float nearest = __ll2float_rz(a);
        const bool exact = static_cast<i64>(nearest) == static_cast<i64>(a);
        return exact ? nearest : __uint_as_float(__float_as_uint(nearest) | 1);
    } else {
        const float nearest = __ull2float_rz(a);
        const bool exact = static_cast<u64>(nearest) == static_cast<u64>(a);
        return exact ? nearest : __uint_as_float(__float_as_uint(nearest) | 1);
    }
}

template <class T>
inline constexpr bool kIsFloat = false;
template <>
inline constexpr bool kIsFloat<float> = true;
template <>
inline constexpr bool kIsFloat<double> = true;
template <class A, class B>
inline constexpr bool kSame = false;
template <class A>
inline constexpr bool kSame<A, A> = true;

template <class T, class F>
TW_DEVICE T saturate(F a) {
    if (a != a) return T(0);
    const F above =
        static_cast<F>(2) * static_cast<F>(u64{1} << (kWidth<T> - (kSigned<T> ? 2 : 1)));
    const F below = kSigned<T> ? -above : F(0);
    if (a >= above) return static_cast<T>(kSigned<T> ? (u64{1} << (kWidth<T> - 1)) - 1 : ~u64{0});
    if (a <= below) return static_cast<T>(kSigned<T> ? u64{1} << (kWidth<T> - 1) : 0);
    return static_cast<T>(a);
}

template <class S, class T>
TW_DEVICE Register<S> cast(T a) {
    using R = Register<S>;
    if constexpr (kSame<S, boolean>) {
        return a != T(0);
    } else if constexpr (!kSame<R, S>) {  // a narrow float
        return rounded(S{}, round_to_odd(a));
    } else if constexpr (kIsFloat<T> && !kIsFloat<R>) {
        return saturate<R>(a);
    } else {
        return static_cast<R>(a);
    }
}

/// The same bits under another element type of the same width.
template <class To, class From>
TW_DEVICE Register<To> bitcast(Register<From> a) {
    static_assert(sizeof(To) == sizeof(From), "bitcast keeps the width");
    union {
        From from;
        To to;
    } bits = {narrow(From{}, a)};
    return widen(bits.to);
}

/// log(exp(a) + exp(b)) without overflow; NaN propagates.
template <class T>
TW_DEVICE T log_add_exp(T a, T b) {
    if (a != a || b != b) return a + b;
    const T high = max(a, b), low = min(a, b);
    // The difference of equal infinities is NaN.
    return high - high != 0 ? high : high + log1p(exp(low - high));
}

/// True when b at index j replaces a at index i as the extreme: NaN first, then the lower index.
template <bool kMax, class T>
TW_DEVICE bool replaces_extreme(T a, int i, T b, int j) {
    if (b != b) return a == a || j < i;
    if (a != a) return false;
    if (a == b) return j < i;
    return kMax ? b > a : b < a;
}

/// First word of philox4x32-10 with counter words (low, high, 0, 0).
TW_DEVICE u32 random_bits(u64 key, u64 counter) {
    u32 c0 = static_cast<u32>(counter), c1 = static_cast<u32>(counter >> 32), c2 = 0, c3 = 0;
    u32 k0 = static_cast<u32>(key), k1 = static_cast<u32>(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u32 low0 = c0 * 0xD2511F53u, high0 = __umulhi(c0, 0xD2511F53u);
        const u32 low1 = c2 * 0xCD9E8D57u, high1 = __umulhi(c2, 0xCD9E8D57u);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

}  // namespace twd::ops
