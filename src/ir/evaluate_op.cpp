// Scalar semantics of the elementwise ops, a case for each.
#include <bit>
#include <cmath>
#include <limits>

#include "ir/bits.h"
#include "ir/evaluate.h"
#include "ir/function_values.h"
#include "support/check.h"
#include "support/small_float.h"

namespace tilewright::ir {
namespace {

// ---- Floats. T is double for f64 and float for every narrower dtype: f16, bf16 and f8 compute in
// f32 and round once at the end.

template <typename T>
T minimum(T a, T b) {
    return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : b < a ? b : a;
}

template <typename T>
T maximum(T a, T b) {
    return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : a < b ? b : a;
}

// Computed from the remainder, which is exact, rather than from a rounded a / b.
template <typename T>
T floor_mod(T a, T b) {
    const T remainder = std::fmod(a, b);
    if (remainder != 0 && std::signbit(remainder) != std::signbit(b)) return remainder + b;
    return remainder == 0 ? std::copysign(T{0}, b) : remainder;
}

template <typename T>
T sign(T a) {
    return std::isnan(a) || a == 0 ? a : std::copysign(T{1}, a);
}

template <typename T>
T float_op(Op op, [[maybe_unused]] DType dtype, T x, T y, T z) {
    switch (op) {
#define TW_FUNCTION(row, op_class, dtypes, function, value, ...) \
    case Op::row:                                                \
        return static_cast<T>(value);
#include "ir/ops.inl"
        case Op::neg:
            return -x;
        case Op::abs:
            return std::fabs(x);
        case Op::sign:
            return sign(x);
        case Op::add:
            return x + y;
        case Op::sub:
            return x - y;
        case Op::mul:
            return x * y;
        case Op::div:
            return x / y;
        case Op::floordiv:
            return std::floor(x / y);
        case Op::rem:
            return std::fmod(x, y);
        case Op::floormod:
            return floor_mod(x, y);
        case Op::min:
            return minimum(x, y);
        case Op::max:
            return maximum(x, y);
        case Op::clamp:
            return minimum(maximum(x, y), z);
        case Op::fma:
            return std::fma(x, y, z);
        default:
            TW_ASSERT(false, "{} has no float form", name(op));
    }
}

bool compare(Op op, auto a, auto b) {
    switch (op) {
        case Op::eq:
            return a == b;
        case Op::ne:
            return a != b;
        case Op::lt:
            return a < b;
        case Op::le:
            return a <= b;
        case Op::gt:
            return a > b;
        case Op::ge:
            return a >= b;
        default:
            TW_ASSERT(false, "{} is no comparison", name(op));
    }
}

// ---- Integers, on 64-bit words; the caller wraps the result to the dtype's width. Division
// follows XLA: by zero gives all ones, remainder by zero the dividend, INT_MIN / -1 = INT_MIN.

std::uint64_t divide(DType dtype, std::uint64_t a, std::uint64_t b) {
    if (b == 0) return ~std::uint64_t{0};
    if (!is_signed(dtype)) return a / b;
    if (b == ~std::uint64_t{0}) return -a;
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(a) / static_cast<std::int64_t>(b));
}

std::uint64_t remainder(DType dtype, std::uint64_t a, std::uint64_t b) {
    if (b == 0) return a;
    if (!is_signed(dtype)) return a % b;
    if (b == ~std::uint64_t{0}) return 0;
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(a) % static_cast<std::int64_t>(b));
}

// True when the truncated quotient is greater than the floored one.
bool truncated_up(DType dtype, std::uint64_t a, std::uint64_t b) {
    if (!is_signed(dtype) || b == 0) return false;
    const auto rest = static_cast<std::int64_t>(remainder(dtype, a, b));
    return rest != 0 && (rest < 0) != (static_cast<std::int64_t>(b) < 0);
}

std::uint64_t shift_right(DType dtype, std::uint64_t a, std::uint64_t by) {
    const auto width = static_cast<std::uint64_t>(8 * size_of(dtype));
    const bool negative = is_signed(dtype) && static_cast<std::int64_t>(a) < 0;
    // A negative count is a huge unsigned one, so at least the width.
    if (by >= width) return negative ? ~std::uint64_t{0} : 0;
    if (is_signed(dtype)) return static_cast<std::uint64_t>(static_cast<std::int64_t>(a) >> by);
    return a >> by;
}

bool less(DType dtype, std::uint64_t a, std::uint64_t b) {
    return is_signed(dtype) ? static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) : a < b;
}

std::uint64_t integer_op(Op op, DType dtype, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
    const bool negative = is_signed(dtype) && static_cast<std::int64_t>(a) < 0;
    switch (op) {
        case Op::neg:
            return -a;
        case Op::abs:
            return negative ? -a : a;
        case Op::sign:
            return negative ? ~std::uint64_t{0} : a != 0;
        case Op::bitwise_not:
            return ~a;
        case Op::add:
            return a + b;
        case Op::sub:
            return a - b;
        case Op::mul:
            return a * b;
        case Op::div:
            return divide(dtype, a, b);
        case Op::floordiv:
            return divide(dtype, a, b) - truncated_up(dtype, a, b);
        case Op::rem:
            return remainder(dtype, a, b);
        case Op::floormod:
            return remainder(dtype, a, b) + (truncated_up(dtype, a, b) ? b : 0);
        case Op::min:
            return less(dtype, b, a) ? b : a;
        case Op::max:
            return less(dtype, a, b) ? b : a;
        case Op::bitwise_and:
            return a & b;
        case Op::bitwise_or:
            return a | b;
        case Op::bitwise_xor:
            return a ^ b;
        case Op::shift_left:
            return b >= static_cast<std::uint64_t>(8 * size_of(dtype)) ? 0 : a << b;
        case Op::shift_right:
            return shift_right(dtype, a, b);
        case Op::clamp: {
            const std::uint64_t raised = less(dtype, a, b) ? b : a;
            return less(dtype, c, raised) ? c : raised;
        }
        default:
            TW_ASSERT(false, "{} has no integer form", name(op));
    }
}

// ---- Conversions.

// Narrows a 64-bit integer to 54 significant bits, the last one sticky, so that rounding the result
// to any float format of at most 52 bits equals rounding the integer itself.
double round_to_odd(bool negative, std::uint64_t magnitude) {
    int shift = 0;
    while (magnitude >> 53 != 0) {
        magnitude = (magnitude >> 1) | (magnitude & 1);
        ++shift;
    }
    const double value = std::ldexp(static_cast<double>(magnitude), shift);
    return negative ? -value : value;
}

double integer_to_float(DType in, DType out, std::uint64_t bits) {
    const bool negative = is_signed(in) && static_cast<std::int64_t>(bits) < 0;
    if (out == DType::f64) {
        return negative ? static_cast<double>(static_cast<std::int64_t>(bits))
                        : static_cast<double>(bits);
    }
    return round_to(out, round_to_odd(negative, negative ? -bits : bits));
}

std::uint64_t float_to_integer(DType out, double value) {
    if (std::isnan(value)) return 0;
    const double truncated = std::trunc(value);
    const int magnitude_bits = 8 * size_of(out) - (is_signed(out) ? 1 : 0);
    const double above = std::ldexp(1.0, magnitude_bits);
    if (truncated >= above) return identity(Reduction::min, out);  // the largest of the dtype
    if (!is_signed(out)) return truncated <= 0 ? 0 : static_cast<std::uint64_t>(truncated);
    if (truncated < -above) return identity(Reduction::max, out);
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(truncated));
}

std::uint64_t cast(DType in, DType out, std::uint64_t bits) {
    if (is_float(in)) {
        if (is_float(out)) return from_double(round_to(out, to_double(bits)));
        if (out == DType::boolean) return to_double(bits) != 0;
        return float_to_integer(out, to_double(bits));
    }
    if (is_float(out)) return from_double(integer_to_float(in, out, bits));
    return wrap_to(out, bits);
}

std::uint64_t bitcast(DType in, DType out, std::uint64_t bits) {
    unsigned char memory[8];
    write_element(in, memory, bits);
    return read_element(out, memory);
}

}  // namespace

std::uint64_t evaluate(Op op, DType in, DType out, const std::uint64_t* operands) {
    const OpClass op_class = info(op).op_class;
    switch (op) {
        case Op::select:
            return operands[0] != 0 ? operands[1] : operands[2];
        case Op::cast:
            return cast(in, out, operands[0]);
        case Op::bitcast:
            return bitcast(in, out, operands[0]);
        case Op::isnan:
            return std::isnan(to_double(operands[0]));
        default:
            break;
    }
    if (op_class == OpClass::comparison) {
        if (is_float(in)) return compare(op, to_double(operands[0]), to_double(operands[1]));
        if (!is_signed(in)) return compare(op, operands[0], operands[1]);
        return compare(op, static_cast<std::int64_t>(operands[0]),
                       static_cast<std::int64_t>(operands[1]));
    }
    const std::uint64_t a = operands[0];
    const std::uint64_t b = op_class == OpClass::unary ? 0 : operands[1];
    const std::uint64_t c = op_class == OpClass::ternary ? operands[2] : 0;
    if (in == DType::boolean) {
        if (op == Op::bitwise_not) return a == 0;
        return integer_op(op, in, a, b, c);
    }
    if (!is_float(in)) return wrap_to(out, integer_op(op, in, a, b, c));
    if (in == DType::f64)
        return from_double(float_op(op, in, to_double(a), to_double(b), to_double(c)));
    const float result =
        float_op(op, in, static_cast<float>(to_double(a)), static_cast<float>(to_double(b)),
                 static_cast<float>(to_double(c)));
    return from_double(round_to(out, result));
}

}  // namespace tilewright::ir
