// Local rules of the fold pass.
#include "ir/passes/simplify.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "ir/evaluate.h"
#include "ir/passes/range_ops.h"

namespace tilewright::ir {
namespace {

Simplified constant(std::uint64_t bits) {
    Simplified result;
    result.constant = bits;
    return result;
}

Simplified same_as(Value value) {
    Simplified result;
    result.value = value;
    return result;
}

Simplified become(Op op, std::vector<Value> operands, Attributes attributes = {}) {
    Simplified result;
    result.instruction.emplace();
    result.instruction->op = op;
    result.instruction->operands = std::move(operands);
    result.instruction->attributes = std::move(attributes);
    return result;
}

// True when every value of `from` is a value of `to`: a cast there and back changes nothing.
bool holds(DType to, DType from) {
    if (to == from) return true;
    if (from == DType::boolean) return true;
    if (is_float(from)) {
        if (!is_float(to)) return false;
        return to == DType::f64 || (to == DType::f32 && from != DType::f64);
    }
    if (is_float(to)) return size_of(from) < (to == DType::f64 ? 8 : to == DType::f32 ? 3 : 0);
    if (to == DType::boolean) return false;
    if (is_signed(from) && !is_signed(to)) return false;
    if (is_signed(from) == is_signed(to)) return size_of(to) >= size_of(from);
    return size_of(to) > size_of(from);
}

class Simplifier {
  public:
    Simplifier(const Function& function, const Instruction& instruction, const KnownValues& known)
        : function_(function),
          instruction_(instruction),
          known_(known),
          result_(function.type(instruction.result())) {}

    Simplified run() {
        if (instruction_.op == Op::constant) return {};
        if (auto folded = evaluated()) return constant(*folded);
        switch (info(instruction_.op).op_class) {
            case OpClass::source:
                return source();
            case OpClass::unary:
                return unary();
            case OpClass::binary:
                return is_float(result_.dtype) ? float_binary() : binary();
            case OpClass::comparison:
                return comparison();
            case OpClass::ternary:
                return ternary();
            case OpClass::convert:
                return convert();
            case OpClass::shape:
                return shape();
            default:
                return {};
        }
    }

  private:
    Value operand(std::size_t i) const { return instruction_.operands[i]; }
    const Type& type(Value value) const { return function_.type(value); }

    bool is(Value value, double wanted) const {
        const auto bits = known_.constant(value);
        return bits && *bits == encode(type(value).dtype, wanted);
    }
    bool is_op(Value value, Op op) const { return known_.is_op(value, op); }

    // Elementwise ops and data movement of constants.
    std::optional<std::uint64_t> evaluated() const {
        const Op op = instruction_.op;
        const bool moves = info(op).op_class == OpClass::shape;
        if (!(is_elementwise(op) || moves || op == Op::random_bits)) return std::nullopt;
        std::vector<std::uint64_t> bits;
        for (Value value : instruction_.operands) {
            const auto known = known_.constant(value);
            if (!known) return std::nullopt;
            bits.push_back(*known);
        }
        if (op == Op::random_bits) return philox(bits[0], bits[1]);
        if (moves) {
            const bool equal = std::ranges::all_of(bits, [&](auto b) { return b == bits[0]; });
            return equal ? std::optional(bits[0]) : std::nullopt;
        }
        const DType in = type(operand(op == Op::select ? 1 : 0)).dtype;
        return evaluate(op, in, result_.dtype, bits.data());
    }

    Simplified source() const {
        if (instruction_.op == Op::program_id || instruction_.op == Op::num_programs ||
            instruction_.op == Op::extent) {
            const std::size_t axis = instruction_.get<AxisAttributes>().axis;
            const std::int64_t extent = instruction_.op == Op::extent
                                            ? function_.ref_type(operand(0)).extents[axis]
                                            : function_.grid[axis];
            if (instruction_.op == Op::program_id) return extent == 1 ? constant(0) : Simplified{};
            if (extent != kDynamic) return constant(static_cast<std::uint64_t>(extent));
            return {};
        }
        const int axis = instruction_.get<AxisAttributes>().axis;  // iota
        return result_.shape[axis] == 1 ? constant(encode(result_.dtype, 0)) : Simplified{};
    }

    Simplified unary() const {
        const Op op = instruction_.op;
        const Value a = operand(0);
        const bool undoes = (op == Op::neg || op == Op::bitwise_not) && is_op(a, op);
        if (undoes) return same_as(known_.operands(a)[0]);
        const bool repeats =
            op == Op::abs || op == Op::floor || op == Op::ceil || op == Op::round || op == Op::sign;
        if (repeats && is_op(a, op)) return same_as(a);
        return {};
    }

    // x + -0, x - 0, x * 1, x / 1, x * -1, x / 2^n; not x + 0 (it turns -0 into 0), not x * 0.
    Simplified float_binary() const {
        const Value a = operand(0), b = operand(1);
        const auto minus_zero = [&](Value v) {
            const auto bits = known_.constant(v);
            return bits && *bits == std::bit_cast<std::uint64_t>(-0.0);
        };
        switch (instruction_.op) {
            case Op::add:
                if (minus_zero(b)) return same_as(a);
                if (minus_zero(a)) return same_as(b);
                return {};
            case Op::sub:
                return is(b, 0) ? same_as(a) : Simplified{};
            case Op::mul:
                if (is(b, 1)) return same_as(a);
                if (is(a, 1)) return same_as(b);
                if (is(b, -1)) return become(Op::neg, {a}, MathAttributes{});
                if (is(a, -1)) return become(Op::neg, {b}, MathAttributes{});
                return {};
            case Op::div:
                return divide(a, b);
            case Op::min:
            case Op::max:
                return a == b ? same_as(a) : Simplified{};
            default:
                return {};
        }
    }

    // Division by a power of two is multiplication by its reciprocal, if that is a normal number.
    Simplified divide(Value a, Value b) const {
        if (is(b, 1)) return same_as(a);
        const auto bits = known_.constant(b);
        if (!bits) return {};
        const double divisor = std::bit_cast<double>(*bits);
        int exponent = 0;
        if (!std::isfinite(divisor) || std::fabs(std::frexp(divisor, &exponent)) != 0.5) return {};
        // Both the divisor and its reciprocal stay normal numbers of the dtype.
        const int limit = size_of(result_.dtype) == 1 ? 6 : result_.dtype == DType::f16 ? 14 : 100;
        if (std::abs(exponent) > limit) return {};
        auto result = become(Op::mul, {a});
        result.last_operand = encode(result_.dtype, 1 / divisor);
        return result;
    }

    Simplified binary() const {
        const Value a = operand(0), b = operand(1);
        const auto both = [&](double wanted) -> Value {
            return is(b, wanted) ? a : is(a, wanted) ? b : Value{};
        };
        const std::uint64_t ones = wrap_to(result_.dtype, ~std::uint64_t{0});
        switch (instruction_.op) {
            case Op::add:
                if (const Value other = both(0)) return same_as(other);
                return chain();
            case Op::sub:
                if (is(b, 0)) return same_as(a);
                if (a == b) return constant(0);
                return chain();
            case Op::mul:
                if (both(0)) return constant(0);
                if (const Value other = both(1)) return same_as(other);
                return chain();
            case Op::div:
            case Op::floordiv:
                return is(b, 1) ? same_as(a) : quotient();
            case Op::rem:
            case Op::floormod:
                return is(b, 1) ? constant(0) : remainder();
            case Op::min:
            case Op::max:
                return a == b ? same_as(a) : Simplified{};
            case Op::bitwise_and:
                if (a == b) return same_as(a);
                if (is(b, 1)) {  // a value and its negation have the same lowest bit
                    if (is_op(a, Op::abs) || is_op(a, Op::neg)) {
                        return become(Op::bitwise_and, {known_.operands(a)[0], b});
                    }
                }
                if (both(0) || is_not(a, b) || is_not(b, a)) return constant(0);
                if (known_.constant(b) == ones) return same_as(a);
                if (known_.constant(a) == ones) return same_as(b);
                return {};
            case Op::bitwise_or:
                if (a == b) return same_as(a);
                if (known_.constant(a) == ones || known_.constant(b) == ones || is_not(a, b) ||
                    is_not(b, a)) {
                    return constant(ones);
                }
                if (const Value other = both(0)) return same_as(other);
                return {};
            case Op::bitwise_xor:
                if (a == b) return constant(0);
                if (const Value other = both(0)) return same_as(other);
                return {};
            case Op::shift_left:
            case Op::shift_right:
                return is(b, 0) ? same_as(a) : Simplified{};
            default:
                return {};
        }
    }

    // ---- Division of integers by 2^k. Shifts and masks of low bits round down in two's
    // complement; truncation is the same if the dividend is not negative.
    std::optional<int> power_of_two(Value value) const {
        const auto bits = known_.constant(value);
        const bool negative =
            is_signed(result_.dtype) && bits && static_cast<std::int64_t>(*bits) < 0;
        if (!bits || negative || !std::has_single_bit(*bits)) return std::nullopt;
        return std::countr_zero(*bits);
    }

    bool rounds_down() const {
        const Op op = instruction_.op;
        if (op == Op::floordiv || op == Op::floormod || !is_signed(result_.dtype)) return true;
        // abs of the lowest value is the value itself, a multiple of every 2^k.
        return is_op(operand(0), Op::abs) || range(operand(0)).low >= 0;
    }

    bool is_not(Value a, Value b) const {
        return is_op(a, Op::bitwise_not) && known_.operands(a)[0] == b;
    }

    Simplified quotient() const {
        const auto power = power_of_two(operand(1));
        if (!power || !rounds_down()) return {};
        auto result = become(Op::shift_right, {operand(0)});
        result.last_operand = static_cast<std::uint64_t>(*power);
        return result;
    }

    Simplified remainder() const {
        const auto power = power_of_two(operand(1));
        if (!power || !rounds_down()) return {};
        auto result = become(Op::bitwise_and, {operand(0)});
        result.last_operand = (std::uint64_t{1} << *power) - 1;
        return result;
    }

    // The range as far as the ops that define the value prove it.
    Interval range(Value value, int depth = 0) const {
        constexpr int kMaxDepth = 8;
        const Instruction* made = known_.definition(value);
        if (made == nullptr || depth == kMaxDepth) return Interval::all(type(value).dtype);
        return result_range(function_, *made,
                            [&](Value operand) { return range(operand, depth + 1); });
    }

    // (x + c) + d = x + (c + d), x - c = x + (-c), (x * c) * d = x * (c * d): exact, because
    // integers wrap.
    Simplified chain() const {
        Value a = operand(0), b = operand(1);
        if (instruction_.op != Op::sub && known_.constant(a)) std::swap(a, b);
        const auto outer = known_.constant(b);
        if (!outer) return {};
        const Op op = instruction_.op == Op::sub ? Op::add : instruction_.op;
        const DType dtype = result_.dtype;
        std::uint64_t value = instruction_.op == Op::sub ? wrap_to(dtype, -*outer) : *outer;
        Value x = a;
        if (is_op(a, op)) {
            const std::vector<Value>& inner = known_.operands(a);
            if (const auto c = known_.constant(inner[1])) {
                value = wrap_to(dtype, op == Op::add ? value + *c : value * *c);
                x = inner[0];
            }
        }
        const bool unchanged = x == a && op == instruction_.op && a == operand(0);
        if (unchanged) return {};
        auto result = become(op, {x});
        result.last_operand = value;
        return result;
    }

    Simplified comparison() const {
        const Value a = operand(0), b = operand(1);
        if (a != b || is_float(type(a).dtype)) return {};
        const Op op = instruction_.op;
        return constant(op == Op::eq || op == Op::le || op == Op::ge);
    }

    Simplified ternary() const {
        if (instruction_.op != Op::select) return {};
        const Value condition = operand(0);
        if (operand(1) == operand(2)) return same_as(operand(1));
        if (const auto known = known_.constant(condition)) return same_as(operand(*known ? 1 : 2));
        if (is_op(condition, Op::bitwise_not)) {
            return become(Op::select, {known_.operands(condition)[0], operand(2), operand(1)});
        }
        return {};
    }

    Simplified convert() const {
        const Value a = operand(0);
        if (type(a) == result_) return same_as(a);
        if (instruction_.op != Op::cast || !is_op(a, Op::cast)) return {};
        const Value source = known_.operands(a)[0];
        if (!holds(type(a).dtype, type(source).dtype)) return {};
        if (type(source) == result_) return same_as(source);
        // Integers saturate when cast through a float, but wrap when cast directly.
        const bool saturates =
            is_integer(type(source).dtype) && is_float(type(a).dtype) && is_integer(result_.dtype);
        if (saturates) return {};
        return become(Op::cast, {source});
    }

    Simplified shape() const {
        const Value a = operand(0);
        switch (instruction_.op) {
            case Op::broadcast:
            case Op::reshape:
                if (type(a) == result_) return same_as(a);
                if (is_op(a, instruction_.op)) {
                    const Value source = known_.operands(a)[0];
                    // A single step from the source has the same result as two.
                    return type(source) == result_ ? same_as(source)
                                                   : become(instruction_.op, {source});
                }
                return {};
            case Op::transpose:
                return transpose();
            case Op::slice:
                return type(a) == result_ ? same_as(a) : Simplified{};
            case Op::concatenate:
                return instruction_.operands.size() == 1 ? same_as(a) : Simplified{};
            default:
                return {};
        }
    }

    Simplified transpose() const {
        const Value a = operand(0);
        auto permutation = instruction_.get<PermutationAttributes>().permutation;
        Value source = a;
        if (is_op(a, Op::transpose)) {
            const auto& inner = known_.definition(a)->get<PermutationAttributes>().permutation;
            for (int& axis : permutation) axis = inner[axis];
            source = known_.operands(a)[0];
        }
        if (std::ranges::is_sorted(permutation)) return same_as(source);
        if (source == a) return {};
        return become(Op::transpose, {source}, PermutationAttributes{permutation});
    }

    const Function& function_;
    const Instruction& instruction_;
    const KnownValues& known_;
    const Type& result_;
};

}  // namespace

void KnownValues::define(const Instruction& instruction) {
    if (instruction.results.size() != 1 || !is_pure(instruction.op)) return;
    const std::size_t id = instruction.result().id;
    if (id >= definitions_.size()) definitions_.resize(id + 1);
    definitions_[id] = instruction;
}

const Instruction* KnownValues::definition(Value value) const {
    const bool known = value.id < definitions_.size() && definitions_[value.id].has_value();
    return known ? &*definitions_[value.id] : nullptr;
}

std::optional<std::uint64_t> KnownValues::constant(Value value) const {
    if (!is_op(value, Op::constant)) return std::nullopt;
    return definition(value)->get<ConstantAttributes>().bits;
}

Simplified simplify(const Function& function, const Instruction& instruction,
                    const KnownValues& known) {
    if (instruction.results.size() != 1 || !is_pure(instruction.op)) return {};
    return Simplifier(function, instruction, known).run();
}

}  // namespace tilewright::ir
