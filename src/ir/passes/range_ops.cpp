// Interval arithmetic, one function per class of ops.
#include "ir/passes/range_ops.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "ir/bits.h"
#include "ir/evaluate.h"

namespace tilewright::ir {
namespace {

using Wide = __int128;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Interval boolean_range(bool may_be_false, bool may_be_true) {
    return Interval::integers(may_be_false ? 0 : 1, may_be_true ? 1 : 0);
}

// ---- Integers.

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
    const std::int64_t quotient = a / b;
    return a % b != 0 && (a % b < 0) != (b < 0) ? quotient - 1 : quotient;
}

/// Quotients by a range of divisors without 0, none of whose corners overflow: monotone in each
/// operand, so the extremes are at the corners.
void extend_quotients(Op op, const Interval& a, std::int64_t low, std::int64_t high, Wide& least,
                      Wide& greatest) {
    for (const std::int64_t divisor : {low, high}) {
        for (const std::int64_t dividend : {a.low, a.high}) {
            const Wide quotient =
                op == Op::div ? Wide{dividend / divisor} : Wide{floor_quotient(dividend, divisor)};
            least = std::min(least, quotient);
            greatest = std::max(greatest, quotient);
        }
    }
}

Interval quotient_range(Op op, DType dtype, const Interval& a, const Interval& b) {
    // The lowest value divided by -1 wraps to itself.
    if (is_signed(dtype) && a.low == lowest(dtype) && b.low <= -1 && b.high >= -1)
        return Interval::all(dtype);
    Wide least = std::numeric_limits<std::int64_t>::max();
    Wide greatest = std::numeric_limits<std::int64_t>::min();
    if (b.low < 0)
        extend_quotients(op, a, b.low, std::min<std::int64_t>(b.high, -1), least, greatest);
    if (b.high > 0)
        extend_quotients(op, a, std::max<std::int64_t>(b.low, 1), b.high, least, greatest);
    if (b.low <= 0 && b.high >= 0) {  // division by zero gives all ones
        if (dtype == DType::u64) return Interval::all(dtype);
        const Wide ones = is_signed(dtype) ? -1 : Wide{highest(dtype)};
        least = std::min(least, ones);
        greatest = std::max(greatest, ones);
    }
    return fitted(dtype, least, greatest);
}

/// Remainders of divisions by [low, high], which have one sign.
Interval remainders(Op op, const Interval& a, std::int64_t low, std::int64_t high) {
    if (low == high && low != std::numeric_limits<std::int64_t>::min() && low != -1) {
        const bool truncated = op == Op::rem;
        const std::int64_t first = truncated ? a.low / low : floor_quotient(a.low, low);
        const std::int64_t last = truncated ? a.high / low : floor_quotient(a.high, low);
        if (first == last) {
            const Wide multiple = Wide{first} * low;
            return Interval::integers(static_cast<std::int64_t>(a.low - multiple),
                                      static_cast<std::int64_t>(a.high - multiple));
        }
    }
    // The magnitude of the remainder is less than that of the divisor.
    const std::int64_t bound = low < 0 ? -(low + 1) : high - 1;
    if (op == Op::rem) {
        const std::int64_t below = a.low < 0 ? std::max(a.low, -bound) : 0;
        return Interval::integers(below, a.high > 0 ? std::min(a.high, bound) : 0);
    }
    if (low > 0) return Interval::integers(0, a.low >= 0 ? std::min(a.high, bound) : bound);
    return Interval::integers(a.high <= 0 ? std::max(a.low, -bound) : -bound, 0);
}

Interval remainder_range(Op op, DType dtype, const Interval& a, const Interval& b) {
    Interval result = a;
    bool first = true;
    const auto add = [&](const Interval& part) {
        result = first ? part : joined(dtype, result, part);
        first = false;
    };
    if (b.low < 0) add(remainders(op, a, b.low, std::min<std::int64_t>(b.high, -1)));
    if (b.high > 0) add(remainders(op, a, std::max<std::int64_t>(b.low, 1), b.high));
    if (b.low <= 0 && b.high >= 0) add(a);  // the remainder of division by zero is the dividend
    return result;
}

/// Bits that all values of a range share: those above the highest bit in which its ends differ.
struct KnownBits {
    std::uint64_t known, value;

    explicit KnownBits(const Interval& a)
        : known(~std::uint64_t{0}), value(static_cast<std::uint64_t>(a.low)) {
        const auto differ = static_cast<std::uint64_t>(a.low ^ a.high);
        if (differ != 0)
            known = std::bit_width(differ) == 64 ? 0 : ~std::uint64_t{0} << std::bit_width(differ);
        value &= known;
    }
};

Interval bits_range(Op op, DType dtype, const Interval& a, const Interval& b) {
    const KnownBits x(a), y(b);
    std::uint64_t known = x.known & y.known, ones = 0;
    switch (op) {
        case Op::bitwise_and:
            known |= (x.known & ~x.value) | (y.known & ~y.value);
            ones = x.value & y.value;
            break;
        case Op::bitwise_or:
            known |= x.value | y.value;
            ones = x.value | y.value;
            break;
        default:
            ones = (x.value ^ y.value) & known;
            break;
    }
    if ((known >> 63) == 0) return Interval::all(dtype);  // the sign is unknown
    Interval result = Interval::integers(static_cast<std::int64_t>(ones),
                                         static_cast<std::int64_t>(ones | ~known));
    if (op == Op::bitwise_and) {  // of non-negative values: at most the smaller one
        if (a.low >= 0) result.high = std::min(result.high, a.high);
        if (b.low >= 0) result.high = std::min(result.high, b.high);
    }
    if (op == Op::bitwise_or && a.low >= 0 && b.low >= 0)
        result.low = std::max({result.low, a.low, b.low});
    return result;
}

Interval shift_range(Op op, DType dtype, const Interval& a, const Interval& by) {
    if (by.low < 0 || by.high >= width(dtype)) {
        if (op == Op::shift_left) return Interval::all(dtype);
        // Any count shifts towards 0, or -1.
        return Interval::integers(std::min<std::int64_t>(a.low, 0),
                                  std::max<std::int64_t>(a.high, a.low < 0 ? -1 : 0));
    }
    Wide least = std::numeric_limits<Wide>::max(), greatest = std::numeric_limits<Wide>::min();
    for (const std::int64_t count : {by.low, by.high}) {
        for (const std::int64_t value : {a.low, a.high}) {
            const Wide shifted =
                op == Op::shift_left ? Wide{value} * (Wide{1} << count) : Wide{value} >> count;
            least = std::min(least, shifted);
            greatest = std::max(greatest, shifted);
        }
    }
    return fitted(dtype, least, greatest);
}

Interval integer_range(Op op, DType dtype, const Interval& a, const Interval& b) {
    if (a.any || b.any) {
        if (op == Op::min && !(a.any && b.any))
            return Interval::integers(0, a.any ? b.high : a.high);
        return Interval::all(dtype);
    }
    switch (op) {
        case Op::add:
            return fitted(dtype, Wide{a.low} + b.low, Wide{a.high} + b.high);
        case Op::sub:
            return fitted(dtype, Wide{a.low} - b.high, Wide{a.high} - b.low);
        case Op::mul: {
            const Wide products[] = {Wide{a.low} * b.low, Wide{a.low} * b.high,
                                     Wide{a.high} * b.low, Wide{a.high} * b.high};
            return fitted(dtype, *std::min_element(products, products + 4),
                          *std::max_element(products, products + 4));
        }
        case Op::div:
        case Op::floordiv:
            return quotient_range(op, dtype, a, b);
        case Op::rem:
        case Op::floormod:
            return remainder_range(op, dtype, a, b);
        case Op::min:
            return Interval::integers(std::min(a.low, b.low), std::min(a.high, b.high));
        case Op::max:
            return Interval::integers(std::max(a.low, b.low), std::max(a.high, b.high));
        case Op::bitwise_and:
        case Op::bitwise_or:
        case Op::bitwise_xor:
            return bits_range(op, dtype, a, b);
        case Op::shift_left:
        case Op::shift_right:
            return shift_range(op, dtype, a, b);
        default:
            return Interval::all(dtype);
    }
}

Interval integer_unary(Op op, DType dtype, const Interval& a) {
    if (a.any) return op == Op::sign ? Interval::integers(0, 1) : Interval::all(dtype);
    const auto sign = [](std::int64_t v) { return std::int64_t{v > 0} - std::int64_t{v < 0}; };
    switch (op) {
        case Op::neg:
            return fitted(dtype, -Wide{a.high}, -Wide{a.low});
        case Op::abs: {
            if (a.low >= 0) return a;
            const Wide greatest = std::max(-Wide{a.low}, Wide{a.high});
            return fitted(dtype, a.high < 0 ? -Wide{a.high} : 0, greatest);
        }
        case Op::sign:
            return Interval::integers(sign(a.low), sign(a.high));
        case Op::bitwise_not:
            if (dtype == DType::boolean || (!is_signed(dtype) && dtype != DType::u64))
                return Interval::integers(highest(dtype) - a.high, highest(dtype) - a.low);
            if (is_signed(dtype)) return Interval::integers(~a.high, ~a.low);
            return Interval::all(dtype);
        default:
            return Interval::all(dtype);
    }
}

// ---- Floats. Ops that round correctly are monotone, so evaluate() at the ends gives the ends.

double epsilon(DType dtype) {
    switch (dtype) {
        case DType::f64:
            return 0x1p-52;
        case DType::f32:
            return 0x1p-23;
        case DType::f16:
            return 0x1p-10;
        case DType::bf16:
            return 0x1p-7;
        default:
            return 0x1p-2;
    }
}

/// The range widened by a relative and an absolute error.
Interval widened(const Interval& a, double relative, double absolute) {
    const auto moved = [&](double end, double sign) {
        return std::isinf(end) ? end : end + sign * (std::fabs(end) * relative + absolute);
    };
    return Interval::floats(moved(a.float_low, -1), moved(a.float_high, 1), a.nan);
}

double apply(Op op, DType dtype, std::initializer_list<double> operands) {
    std::uint64_t bits[3] = {};
    std::transform(operands.begin(), operands.end(), bits,
                   [](double x) { return std::bit_cast<std::uint64_t>(x); });
    return std::bit_cast<double>(evaluate(op, dtype, dtype, bits));
}

/// The hull of candidates; a NaN among them means that the result may be anything.
Interval hull(DType dtype, std::initializer_list<double> candidates, bool nan) {
    Interval result = Interval::floats(kInfinity, -kInfinity, nan);
    for (const double candidate : candidates) {
        if (std::isnan(candidate)) return Interval::all(dtype);
        result.float_low = std::min(result.float_low, candidate);
        result.float_high = std::max(result.float_high, candidate);
    }
    return result;
}

Interval float_unary(Op op, DType dtype, bool approx, const Interval& a) {
    const double low = a.float_low, high = a.float_high;
    // How far a machine's value may be from the exact one, with a margin over
    // docs/explanation/numerics.md.
    const double error = approx ? 0x1p-8 + 8 * epsilon(dtype) : 32 * epsilon(dtype);
    const auto monotone = [&] {
        return widened(hull(dtype, {apply(op, dtype, {low}), apply(op, dtype, {high})}, a.nan),
                       error, error);
    };
    switch (op) {
        case Op::neg:
            return Interval::floats(-high, -low, a.nan);
        case Op::abs:
            if (low >= 0) return a;
            return Interval::floats(high < 0 ? -high : 0, std::max(-low, high), a.nan);
        case Op::sign:
        case Op::floor:
        case Op::ceil:
        case Op::round:
            return hull(dtype, {apply(op, dtype, {low}), apply(op, dtype, {high})}, a.nan);
        case Op::sin:
        case Op::cos:
            return Interval::floats(-1.5, 1.5, a.nan || std::isinf(low) || std::isinf(high));
        default:
            break;
    }
    const FunctionInfo* const function = function_info(op);
    const bool known = function != nullptr && low >= function->monotone_from;
    return known ? monotone() : Interval::all(dtype);
}

Interval float_binary(Op op, DType dtype, const Interval& a, const Interval& b) {
    const bool nan = a.nan || b.nan;
    const auto corners = [&] {
        return hull(dtype,
                    {apply(op, dtype, {a.float_low, b.float_low}),
                     apply(op, dtype, {a.float_low, b.float_high}),
                     apply(op, dtype, {a.float_high, b.float_low}),
                     apply(op, dtype, {a.float_high, b.float_high})},
                    nan);
    };
    const auto unbounded = [](const Interval& x) {
        return std::isinf(x.float_low) || std::isinf(x.float_high);
    };
    const auto has_zero = [](const Interval& x) { return x.float_low <= 0 && x.float_high >= 0; };
    switch (op) {
        case Op::add:
        case Op::sub:
            return corners();
        case Op::mul:
            if ((unbounded(a) && has_zero(b)) || (unbounded(b) && has_zero(a)))
                return Interval::all(dtype);
            // A product may be contracted, unrounded, into a sum that follows.
            return widened(corners(), epsilon(dtype), std::numeric_limits<float>::denorm_min());
        case Op::div:
        case Op::floordiv:
            if (has_zero(b) || (unbounded(a) && unbounded(b))) return Interval::all(dtype);
            return corners();
        case Op::min:
            return Interval::floats(std::min(a.float_low, b.float_low),
                                    std::min(a.float_high, b.float_high), nan);
        case Op::max:
            return Interval::floats(std::max(a.float_low, b.float_low),
                                    std::max(a.float_high, b.float_high), nan);
        default:
            return Interval::all(dtype);
    }
}

template <typename T>
Interval ordered(Op op, T a_low, T a_high, T b_low, T b_high) {
    switch (op) {
        case Op::eq:
            return boolean_range(!(a_low == a_high && b_low == b_high && a_low == b_low),
                                 a_low <= b_high && b_low <= a_high);
        case Op::ne:
            return boolean_range(a_low <= b_high && b_low <= a_high,
                                 !(a_low == a_high && b_low == b_high && a_low == b_low));
        case Op::lt:
            return boolean_range(!(a_high < b_low), a_low < b_high);
        case Op::le:
            return boolean_range(!(a_high <= b_low), a_low <= b_high);
        case Op::gt:
            return boolean_range(!(a_low > b_high), a_high > b_low);
        default:
            return boolean_range(!(a_low >= b_high), a_high >= b_low);
    }
}

}  // namespace

std::int64_t lowest(DType dtype) {
    if (!is_signed(dtype)) return 0;
    return std::numeric_limits<std::int64_t>::min() >> (64 - width(dtype));
}

std::int64_t highest(DType dtype) {
    if (dtype == DType::boolean) return 1;
    const int bits = dtype == DType::u64 ? 63 : width(dtype) - (is_signed(dtype) ? 1 : 0);
    return static_cast<std::int64_t>((std::uint64_t{1} << bits) - 1);
}

Interval Interval::all(DType dtype) {
    if (is_float(dtype)) return Interval::floats(-kInfinity, kInfinity, true);
    Interval range = Interval::integers(lowest(dtype), highest(dtype));
    range.any = dtype == DType::u64;
    return range;
}

bool Interval::is_all(DType dtype) const {
    const Interval whole = all(dtype);
    return low == whole.low && high == whole.high && any == whole.any;
}

Interval fitted(DType dtype, Wide low, Wide high) {
    if (low < lowest(dtype) || high > highest(dtype)) return Interval::all(dtype);
    return Interval::integers(static_cast<std::int64_t>(low), static_cast<std::int64_t>(high));
}

Interval joined(DType dtype, const Interval& a, const Interval& b) {
    if (is_float(dtype)) {
        return Interval::floats(std::min(a.float_low, b.float_low),
                                std::max(a.float_high, b.float_high), a.nan || b.nan);
    }
    Interval range = Interval::integers(std::min(a.low, b.low), std::max(a.high, b.high));
    range.any = a.any || b.any;
    return range;
}

Interval constant_range(DType dtype, std::uint64_t bits) {
    if (is_float(dtype)) {
        const auto value = std::bit_cast<double>(bits);
        return std::isnan(value) ? Interval::all(dtype) : Interval::floats(value, value);
    }
    if (dtype == DType::u64 && bits >> 63 != 0) return Interval::all(dtype);
    const auto value = static_cast<std::int64_t>(bits);
    return Interval::integers(value, value);
}

Interval unary_range(Op op, DType dtype, bool approx, const Interval& a) {
    if (op == Op::isnan) return boolean_range(true, a.nan);
    return is_float(dtype) ? float_unary(op, dtype, approx, a) : integer_unary(op, dtype, a);
}

Interval binary_range(Op op, DType dtype, const Interval& a, const Interval& b) {
    return is_float(dtype) ? float_binary(op, dtype, a, b) : integer_range(op, dtype, a, b);
}

Interval compare_range(Op op, DType dtype, const Interval& a, const Interval& b) {
    if (!is_float(dtype)) {
        if (a.any || b.any) return boolean_range(true, true);
        return ordered(op, a.low, a.high, b.low, b.high);
    }
    Interval result = ordered(op, a.float_low, a.float_high, b.float_low, b.float_high);
    // A NaN compares false, except with ne.
    if (a.nan || b.nan)
        result = joined(DType::boolean, result, Interval::integers(op == Op::ne, op == Op::ne));
    return result;
}

Interval clamp_range(DType dtype, const Interval& value, const Interval& low,
                     const Interval& high) {
    return binary_range(Op::min, dtype, binary_range(Op::max, dtype, value, low), high);
}

Interval fma_range(DType dtype, const Interval& a, const Interval& b, const Interval& c) {
    const Interval product = binary_range(Op::mul, dtype, a, b);
    return binary_range(Op::add, dtype, product, c);
}

Interval cast_range(DType in, DType out, const Interval& a) {
    const auto cast = [&](double value) {
        const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
        return evaluate(Op::cast, in, out, &bits);
    };
    if (is_float(in)) {
        if (out == DType::boolean) {
            const bool zero = a.float_low <= 0 && a.float_high >= 0;
            return boolean_range(zero, a.nan || a.float_low != 0 || a.float_high != 0);
        }
        if (is_float(out)) {
            if (out == DType::f8e4m3) return Interval::all(out);  // overflow is NaN
            return Interval::floats(std::bit_cast<double>(cast(a.float_low)),
                                    std::bit_cast<double>(cast(a.float_high)), a.nan);
        }
        // Truncation is monotone and saturates; NaN gives 0.
        Interval result = joined(out, constant_range(out, cast(a.float_low)),
                                 constant_range(out, cast(a.float_high)));
        return a.nan ? joined(out, result, Interval::integers(0, 0)) : result;
    }
    if (out == DType::boolean) {
        if (a.any) return boolean_range(true, true);
        return boolean_range(a.low <= 0 && a.high >= 0, a.low != 0 || a.high != 0);
    }
    if (is_float(out)) {
        if (out == DType::f8e4m3) return Interval::all(out);
        const auto rounded = [&](std::int64_t value) {
            const auto bits = static_cast<std::uint64_t>(value);
            return std::bit_cast<double>(evaluate(Op::cast, in, out, &bits));
        };
        Interval result = Interval::floats(rounded(a.low), rounded(a.high));
        if (a.any) result.float_high = size_of(out) < 4 ? kInfinity : 0x1p64;
        return result;
    }
    if (a.any || a.low < lowest(out) || a.high > highest(out)) return Interval::all(out);
    return a;
}

Interval result_range(const Function& function, const Instruction& instruction,
                      const std::function<Interval(Value)>& of) {
    const Type& type = function.type(instruction.result());
    const auto& in = instruction.operands;
    if (is_float(type.dtype)) return Interval::all(type.dtype);
    switch (instruction.op) {
        case Op::constant:
            return constant_range(type.dtype, instruction.get<ConstantAttributes>().bits);
        case Op::program_id:
        case Op::num_programs:
        case Op::extent:
            return Interval::integers(0, highest(type.dtype));
        case Op::iota: {
            const int axis = instruction.get<AxisAttributes>().axis;
            return fitted(type.dtype, 0, type.shape[axis] - 1);
        }
        case Op::broadcast:
        case Op::expand_dims:
        case Op::reshape:
        case Op::slice:
        case Op::transpose:
            return of(in[0]);
        default:
            break;
    }
    if (!is_elementwise(instruction.op)) return Interval::all(type.dtype);
    std::array<Interval, 3> ranges;
    std::transform(in.begin(), in.end(), ranges.begin(), of);
    const Value typed = in[instruction.op == Op::select ? 1 : 0];
    return elementwise_range(instruction.op, function.type(typed).dtype, type.dtype, false,
                             [&](int i) { return ranges[i]; });
}

}  // namespace tilewright::ir
