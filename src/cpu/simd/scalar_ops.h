// The meaning of every elementwise op on single elements (docs/reference/ir.md), in plain C++: the
// scalar table runs it, and every other table is compared with it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "ir/function_values.h"
#include "ir/op.h"

namespace tilewright::cpu {

template <typename T>
inline constexpr bool kIsBool = std::is_same_v<T, bool>;
template <typename T>
inline constexpr bool kIsInteger = std::is_integral_v<T> && !kIsBool<T>;

/// Integer arithmetic wraps, so it is done on unsigned types; 64 bits also keep narrow types from
/// being promoted to (signed) int.
template <typename T>
std::uint64_t wide(T x) {
    return static_cast<std::uint64_t>(
        static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(x));
}

// Which ops exist for elements of type T.

template <ir::Op op, typename T>
constexpr bool unary_exists() {
    using enum ir::Op;
    if (op == bitwise_not) return std::is_integral_v<T>;
    if (op == neg || op == abs || op == sign) return !kIsBool<T>;
    return std::is_floating_point_v<T>;
}

template <ir::Op op, typename T>
constexpr bool binary_exists() {
    using enum ir::Op;
    if (op == min || op == max) return true;
    if (op == bitwise_and || op == bitwise_or || op == bitwise_xor) return std::is_integral_v<T>;
    if (op == shift_left || op == shift_right) return kIsInteger<T>;
#define TW_BINARY(row, function, value, ...) \
    if (op == row && op != pow) return std::is_floating_point_v<T>;
#include "ir/ops.inl"
    return !kIsBool<T>;
}

/// One operand. isnan returns bool, everything else T.
template <ir::Op op, typename T>
auto apply(T x) {
    using enum ir::Op;
    if constexpr (op == neg) {
        if constexpr (kIsInteger<T>)
            return static_cast<T>(-wide(x));
        else
            return -x;
    } else if constexpr (op == abs) {
        if constexpr (kIsInteger<T>)
            return x < T{0} ? static_cast<T>(-wide(x)) : x;
        else
            return std::fabs(x);
    } else if constexpr (op == sign) {
        // A float zero keeps its sign, and NaN stays NaN.
        return x > T{0} ? T{1} : x < T{0} ? static_cast<T>(-1) : x;
    } else if constexpr (op == bitwise_not) {
        if constexpr (kIsBool<T>)
            return !x;
        else
            return static_cast<T>(~x);
    } else if constexpr (op == logistic) {
        // Only exp of a negative number: no overflow on either side.
        const T e = std::exp(-std::fabs(x));
        return (x < T{0} ? e : T{1}) / (T{1} + e);
#define TW_UNARY(row, function, value, ...) \
    }                                       \
    else if constexpr (op == row) {         \
        return static_cast<T>(value);
#define TW_APPROXIMABLE TW_UNARY
#include "ir/ops.inl"
    } else {
        static_assert(op == isnan);
        return std::isnan(x);
    }
}

template <typename T>
T integer_pow(T base, T exponent) {
    if constexpr (std::is_signed_v<T>) {
        if (exponent < T{0}) {
            // The reciprocal, truncated: only those of 1 and -1 are not zero.
            if (base == T{1}) return T{1};
            if (base == T{-1}) return exponent % 2 == 0 ? T{1} : T{-1};
            return T{0};
        }
    }
    std::uint64_t result = 1;
    std::uint64_t square = wide(base);
    for (std::uint64_t e = wide(exponent); e != 0; e >>= 1) {
        if ((e & 1) != 0) result *= square;
        square *= square;
    }
    return static_cast<T>(result);
}

/// Quotient towards zero: -1 (all bits set) for a zero divisor, and INT_MIN / -1 wraps to INT_MIN.
template <typename T>
T integer_div(T a, T b) {
    if (b == T{0}) return static_cast<T>(-1);
    if constexpr (std::is_signed_v<T>) {
        if (b == T{-1}) return static_cast<T>(-wide(a));
    }
    return static_cast<T>(a / b);
}

/// Remainder with the sign of the dividend; the dividend for a zero divisor.
template <typename T>
T integer_rem(T a, T b) {
    if (b == T{0}) return a;
    if constexpr (std::is_signed_v<T>) {
        if (b == T{-1}) return T{0};
    }
    return static_cast<T>(a % b);
}

/// The remainder, plus the divisor where their signs differ.
template <typename T>
T float_floormod(T a, T b) {
    const T r = std::fmod(a, b);
    return r != T{0} && (r < T{0}) != (b < T{0}) ? r + b : r;
}

/// Two operands of one type, result of that type. `dtype`: that of the stored elements, which may
/// be narrower than T.
template <ir::Op op, typename T>
T apply(T x, T y, [[maybe_unused]] DType dtype = sizeof(T) == 8 ? DType::f64 : DType::f32) {
    using enum ir::Op;
    constexpr bool kFloat = std::is_floating_point_v<T>;
    if constexpr (op == min || op == max) {
        if constexpr (kFloat) {
            if (std::isnan(x)) return x;
            if (std::isnan(y)) return y;
        }
        return (op == min ? y < x : x < y) ? y : x;
    } else if constexpr (op == bitwise_and) {
        return static_cast<T>(x & y);
    } else if constexpr (op == bitwise_or) {
        return static_cast<T>(x | y);
    } else if constexpr (op == bitwise_xor) {
        return static_cast<T>(x ^ y);
    } else if constexpr (op == shift_left) {
        return wide(y) >= sizeof(T) * 8 ? T{0} : static_cast<T>(wide(x) << wide(y));
    } else if constexpr (op == shift_right) {
        constexpr std::uint64_t kBits = sizeof(T) * 8;
        if (wide(y) >= kBits) return x < T{0} ? static_cast<T>(-1) : T{0};
        return static_cast<T>(x >> wide(y));
    } else if constexpr (op == add) {
        if constexpr (kFloat)
            return x + y;
        else
            return static_cast<T>(wide(x) + wide(y));
    } else if constexpr (op == sub) {
        if constexpr (kFloat)
            return x - y;
        else
            return static_cast<T>(wide(x) - wide(y));
    } else if constexpr (op == mul) {
        if constexpr (kFloat)
            return x * y;
        else
            return static_cast<T>(wide(x) * wide(y));
    } else if constexpr (op == div) {
        if constexpr (kFloat)
            return x / y;
        else
            return integer_div(x, y);
    } else if constexpr (op == rem) {
        if constexpr (kFloat)
            return std::fmod(x, y);
        else
            return integer_rem(x, y);
    } else if constexpr (op == floordiv) {
        if constexpr (kFloat)
            return std::floor(x / y);
        else if (y != T{0} && integer_rem(x, y) != T{0} && (x < T{0}) != (y < T{0}))
            return static_cast<T>(integer_div(x, y) - 1);
        else
            return integer_div(x, y);
    } else if constexpr (op == floormod) {
        if constexpr (kFloat) {
            return float_floormod(x, y);
        } else {
            const T r = integer_rem(x, y);
            const bool other_sign = r != T{0} && y != T{0} && (r < T{0}) != (y < T{0});
            return other_sign ? static_cast<T>(wide(r) + wide(y)) : r;
        }
    } else if constexpr (op == pow && !kFloat) {
        return integer_pow(x, y);
#define TW_BINARY(row, function, value, ...) \
    }                                        \
    else if constexpr (op == row) {          \
        return static_cast<T>(value);
#include "ir/ops.inl"
    }
}

/// Comparison: NaN compares false, except ne.
template <ir::Op op, typename T>
bool compare(T a, T b) {
    using enum ir::Op;
    if constexpr (op == eq)
        return a == b;
    else if constexpr (op == ne)
        return a != b;
    else if constexpr (op == lt)
        return a < b;
    else if constexpr (op == le)
        return a <= b;
    else if constexpr (op == gt)
        return a > b;
    else
        return a >= b;
}

/// a * b + c; floats round once.
template <typename T>
T fused_multiply_add(T a, T b, T c) {
    if constexpr (std::is_floating_point_v<T>)
        return std::fma(a, b, c);
    else
        return static_cast<T>(wide(a) * wide(b) + wide(c));
}

/// Float to integer: towards zero, saturating, NaN to 0.
template <typename To, typename From>
To truncate(From x) {
    constexpr int kBits = std::numeric_limits<To>::digits;
    const From limit = std::ldexp(From{1}, kBits);  // first value above the range
    if (std::isnan(x)) return To{0};
    if (x >= limit) return std::numeric_limits<To>::max();
    if (x < (std::is_signed_v<To> ? -limit : From{0})) return std::numeric_limits<To>::min();
    return static_cast<To>(x);
}

}  // namespace tilewright::cpu
