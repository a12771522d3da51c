// Keys of boxes: values as functions of position, which find boxes with equal content.
#include <algorithm>
#include <limits>

#include "ir/passes/intervals.h"
#include "ir/passes/range_ops.h"

namespace tilewright::ir {
namespace {

/// 128 bits from a sequence of words. Nothing else tells boxes apart, so both halves must mix well.
class Hasher {
  public:
    Hasher& add(std::uint64_t word) {
        low_ = mixed((low_ ^ word) * 0x9FB21C651E98DF25u);
        high_ = mixed((high_ + word) * 0xD6E8FEB86659FD93u + 0x165667919E3779F9u);
        return *this;
    }
    Hasher& add(const Key& key) { return add(key.low).add(key.high); }
    Key key() const { return {mixed(low_ + high_), mixed(high_ ^ (low_ << 1))}; }

  private:
    static std::uint64_t mixed(std::uint64_t x) {
        x ^= x >> 32;
        x *= 0xD6E8FEB86659FD93u;
        return x ^ x >> 29;
    }
    std::uint64_t low_ = 0x243F6A8885A308D3u, high_ = 0x13198A2E03707344u;
};

constexpr std::uint64_t kAffineTag = 1, kStepTag = 2, kDifferenceTag = 3;

template <typename Form>
Key key_of(const Form& form) {
    if (!form.affine) return form.key;
    return Hasher()
        .add(kAffineTag)
        .add(static_cast<std::uint64_t>(form.base))
        .add(static_cast<std::uint64_t>(form.by[0]))
        .add(static_cast<std::uint64_t>(form.by[1]))
        .key();
}

/// Sets result to a + sign * b; false if that overflows.
template <typename Form>
bool sum(const Form& a, const Form& b, std::int64_t sign, Form& result) {
    const auto add = [sign](std::int64_t x, std::int64_t y, std::int64_t& z) {
        return sign > 0 ? !__builtin_add_overflow(x, y, &z) : !__builtin_sub_overflow(x, y, &z);
    };
    result.affine = true;
    return add(a.base, b.base, result.base) && add(a.by[0], b.by[0], result.by[0]) &&
           add(a.by[1], b.by[1], result.by[1]);
}

template <typename Form>
bool product(const Form& a, std::int64_t factor, Form& result) {
    result.affine = true;
    return !__builtin_mul_overflow(a.base, factor, &result.base) &&
           !__builtin_mul_overflow(a.by[0], factor, &result.by[0]) &&
           !__builtin_mul_overflow(a.by[1], factor, &result.by[1]);
}

}  // namespace

// The forms below are exact values; where an operation wraps, its range is the whole type and only
// the key describes it.
bool Intervals::Evaluation::affine_form(const Step& step, const std::uint32_t* operands,
                                        const Interval& range, Form& form) const {
    const Form& a = forms_[operands[0]];
    const Interval& x = values_[operands[0]];
    if (!a.affine || range.any || x.any) return false;
    const auto exact = [&](__int128 low, __int128 high) {
        return low >= lowest(step.out) && high <= highest(step.out);
    };
    if (step.op == Op::cast) {
        form = a;
        return exact(x.low, x.high) && step.out != DType::boolean;
    }
    if (step.op == Op::neg)
        return exact(-__int128{x.high}, -__int128{x.low}) && product(a, -1, form);
    if (step.op == Op::abs) {
        if (x.low >= 0) form = a;
        return x.low >= 0 || (x.high <= 0 && exact(0, -__int128{x.low}) && product(a, -1, form));
    }
    if (step.num_operands < 2) return false;
    const Form& b = forms_[operands[1]];
    const Interval& y = values_[operands[1]];
    if (!b.affine || y.any) return false;
    switch (step.op) {
        case Op::add:
            return exact(__int128{x.low} + y.low, __int128{x.high} + y.high) && sum(a, b, 1, form);
        case Op::sub:
            return exact(__int128{x.low} - y.high, __int128{x.high} - y.low) && sum(a, b, -1, form);
        case Op::mul: {
            const __int128 corners[] = {__int128{x.low} * y.low, __int128{x.low} * y.high,
                                        __int128{x.high} * y.low, __int128{x.high} * y.high};
            if (!exact(*std::min_element(corners, corners + 4),
                       *std::max_element(corners, corners + 4)))
                return false;
            if (y.is_point()) return product(a, y.low, form);
            return x.is_point() && product(b, x.low, form);
        }
        case Op::rem:
        case Op::floormod: {
            // With the same quotient everywhere, the remainder is the dividend minus a constant.
            if (!y.is_point() || y.low <= 0) return false;
            const auto quotient = [&](std::int64_t v) {
                const std::int64_t q = v / y.low;
                return step.op == Op::floormod && v % y.low < 0 ? q - 1 : q;
            };
            std::int64_t multiple = 0;
            form = a;
            return quotient(x.low) == quotient(x.high) &&
                   !__builtin_mul_overflow(quotient(x.low), y.low, &multiple) &&
                   !__builtin_sub_overflow(a.base, multiple, &form.base);
        }
        case Op::bitwise_and: {
            // A mask of 2^k - 1 is a floormod.
            if (step.in == DType::boolean || !y.is_point() || y.low < 0 || x.low < 0 ||
                (y.low & (y.low + 1)) != 0 || (x.low & ~y.low) != (x.high & ~y.low))
                return false;
            form = a;
            form.base -= x.low & ~y.low;
            return true;
        }
        default:
            return false;
    }
}

bool Intervals::Evaluation::simple_form(const Step& step, const std::uint32_t* operands,
                                        const Interval& range, Form& form) const {
    const bool integer = !is_float(step.out);
    if (integer && range.is_point()) {
        form.affine = true;
        form.base = range.low;
        return true;
    }
    const auto value = [&](int i) -> const Interval& { return values_[operands[i]]; };
    const auto pass = [&](int i) {
        form = forms_[operands[i]];
        return true;
    };
    if (step.op == Op::select && value(0).is_point()) return pass(value(0).low != 0 ? 1 : 2);
    if (!integer || is_float(step.in) || step.num_operands == 0) return false;
    switch (step.op) {
        case Op::bitwise_and:
        case Op::bitwise_or: {
            if (step.in != DType::boolean) break;
            const std::int64_t neutral = step.op == Op::bitwise_and ? 1 : 0;
            for (const int i : {0, 1}) {
                if (value(i).is_point() && value(i).low == neutral) return pass(1 - i);
            }
            break;
        }
        case Op::min:
        case Op::max:
            if (value(0).any || value(1).any) return false;
            if (value(0).high <= value(1).low) return pass(step.op == Op::min ? 0 : 1);
            if (value(1).high <= value(0).low) return pass(step.op == Op::min ? 1 : 0);
            break;
        case Op::clamp:
            if (value(0).any || value(1).any || value(2).any) return false;
            if (value(0).low >= value(1).high && value(0).high <= value(2).low) return pass(0);
            if (value(0).high <= value(1).low && value(1).high <= value(2).low) return pass(1);
            if (value(0).low >= value(2).high) return pass(2);
            break;
        default:
            break;
    }
    return affine_form(step, operands, range, form);
}

bool Intervals::Evaluation::comparison_form(const Step& step, const std::uint32_t* operands,
                                            Interval& range, Form& form) const {
    if (step.op_class != OpClass::comparison || is_float(step.in)) return false;
    const Form &a = forms_[operands[0]], &b = forms_[operands[1]];
    Form difference;
    if (a.affine && b.affine) {
        if (!sum(a, b, -1, difference)) return false;
    } else if (a.affine || b.affine || !(a.key == b.key)) {
        return false;  // equal keys mean equal values: the difference is 0
    }
    __int128 low = difference.base, high = difference.base;
    for (std::size_t axis = 0; axis < 2; ++axis) {
        const __int128 reach = __int128{difference.by[axis]} * reach_[axis];
        low += std::min<__int128>(reach, 0);
        high += std::max<__int128>(reach, 0);
    }
    const auto clipped = [](__int128 v) {
        constexpr __int128 kLimit = std::numeric_limits<std::int64_t>::max();
        return static_cast<std::int64_t>(std::clamp(v, -kLimit, kLimit));
    };
    range = compare_range(step.op, DType::i64, Interval::integers(clipped(low), clipped(high)),
                          Interval::integers(0, 0));
    if (range.is_point()) {
        form.affine = true;
        form.base = range.low;
        return true;
    }
    form.key = Hasher()
                   .add(kDifferenceTag)
                   .add(static_cast<std::uint64_t>(step.op))
                   .add(static_cast<std::uint64_t>(difference.base))
                   .add(static_cast<std::uint64_t>(difference.by[0]))
                   .add(static_cast<std::uint64_t>(difference.by[1]))
                   .key();
    return true;
}

Intervals::Evaluation::Form Intervals::Evaluation::form(const Step& step,
                                                        const std::uint32_t* operands,
                                                        Interval& range) {
    Form form;
    if (step.opaque) {
        form.key = {++fresh_, ~std::uint64_t{1}};
        return form;
    }
    if (simple_form(step, operands, range, form)) return form;
    form = {};
    if (comparison_form(step, operands, range, form)) return form;
    form = {};
    Hasher hasher;
    hasher.add(kStepTag)
        .add(static_cast<std::uint64_t>(step.op) | static_cast<std::uint64_t>(step.in) << 8 |
             static_cast<std::uint64_t>(step.out) << 16 | std::uint64_t{step.approx} << 24 |
             std::uint64_t{step.has_mask} << 25 | std::uint64_t{step.has_other} << 26)
        .add(static_cast<std::uint64_t>(step.array))
        .add(step.bits);
    for (std::uint32_t i = 0; i < step.num_operands; ++i) hasher.add(key_of(forms_[operands[i]]));
    form.key = hasher.key();
    return form;
}

Key Intervals::Evaluation::key() const {
    return key_of(forms_[intervals_.result_]);
}

}  // namespace tilewright::ir
