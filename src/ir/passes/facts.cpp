// Uses, divisors, signs and ranges of values.
#include "ir/passes/facts.h"

#include <algorithm>

#include "ir/passes/range_ops.h"

namespace tilewright::ir {
namespace {

constexpr std::int64_t kLargeDivisor = std::int64_t{1} << 40;  // of zero, for instance
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 40;     // docs/reference/ir.md, section 1
constexpr std::int64_t kMaxPrograms = std::int64_t{1} << 31;   // of a launch

std::int64_t power_of_two_in(std::int64_t value) {
    if (value == 0) return kLargeDivisor;
    return std::min(kLargeDivisor, value & -value);
}

}  // namespace

bool is_view(Op op) {
    return op == Op::broadcast || op == Op::expand_dims || op == Op::transpose || op == Op::reshape;
}

Facts::Facts(const Function& function) : function_(function) {
    visit(function.body);
}

void Facts::visit(const Block& block) {
    for (const Instruction& instruction : block.body) {
        for (Value result : instruction.results) definitions_[result] = &instruction;
        for (Value operand : instruction.operands) users_[operand].push_back(&instruction);
        for (const Block& inner : instruction.blocks) {
            for (Value argument : inner.arguments) loops_[argument] = &instruction;
            visit(inner);
        }
    }
}

const Instruction* Facts::definition(Value value) const {
    const auto found = definitions_.find(value);
    return found == definitions_.end() ? nullptr : found->second;
}

const std::vector<const Instruction*>& Facts::users(Value value) const {
    static const std::vector<const Instruction*> kNone;
    const auto found = users_.find(value);
    return found == users_.end() ? kNone : found->second;
}

const Instruction* Facts::loop_of(Value value) const {
    const auto found = loops_.find(value);
    return found == loops_.end() ? nullptr : found->second;
}

const Instruction* Facts::constant(Value value) const {
    const Instruction* made = definition(value);
    while (made != nullptr && is_view(made->op)) made = definition(made->operands[0]);
    return made != nullptr && made->op == Op::constant ? made : nullptr;
}

bool Facts::is_constant(Value value, std::uint64_t bits) const {
    const Instruction* made = constant(value);
    return made != nullptr && made->get<ConstantAttributes>().bits == bits;
}

std::int64_t Facts::divisor(Value value) const {
    const Instruction* made = definition(value);
    if (made == nullptr) {
        const Instruction* loop = loop_of(value);
        if (loop == nullptr || loop->op != Op::for_loop || loop->blocks[0].arguments[0] != value) {
            return 1;
        }
        return std::min(divisor(loop->operands[0]), divisor(loop->operands[2]));
    }
    const auto of = [&](std::size_t i) { return divisor(made->operands[i]); };
    switch (made->op) {
        case Op::constant:
            return power_of_two_in(static_cast<std::int64_t>(made->get<ConstantAttributes>().bits));
        case Op::extent: {
            const auto& type = function_.ref_type(made->operands[0]);
            const std::int64_t extent = type.extents[made->get<AxisAttributes>().axis];
            return extent == kDynamic ? 1 : power_of_two_in(extent);
        }
        case Op::add:
        case Op::sub:
        case Op::min:
        case Op::max:
        case Op::floormod:
        case Op::rem:
            return std::min(of(0), of(1));
        case Op::bitwise_and:
            return std::max(of(0), of(1));
        case Op::select:
            return std::min(of(1), of(2));
        case Op::mul:
            return std::min(kLargeDivisor, of(0) * std::min(of(1), kLargeDivisor / of(0)));
        case Op::neg:
        case Op::cast:
            return of(0);
        default:
            return 1;
    }
}

bool Facts::non_negative(Value value) const {
    const Instruction* made = definition(value);
    if (made == nullptr) {
        const Instruction* loop = loop_of(value);
        return loop != nullptr && loop->op == Op::for_loop &&
               loop->blocks[0].arguments[0] == value && non_negative(loop->operands[0]);
    }
    const auto of = [&](std::size_t i) { return non_negative(made->operands[i]); };
    switch (made->op) {
        case Op::constant:
            return static_cast<std::int64_t>(made->get<ConstantAttributes>().bits) >= 0;
        case Op::program_id:
        case Op::num_programs:
        case Op::extent:
        case Op::iota:
            return true;
        case Op::add:
        case Op::mul:
        case Op::div:
        case Op::floordiv:
        case Op::min:
            return of(0) && of(1);
        case Op::max:
        case Op::bitwise_and:
            return of(0) || of(1);
        case Op::select:
            return of(1) && of(2);
        case Op::neg: {  // -floordiv(-x, y), which is cdiv, or with a shift in its place
            const Instruction* quotient = definition(made->operands[0]);
            const bool divides = quotient != nullptr &&
                                 (quotient->op == Op::floordiv || quotient->op == Op::shift_right);
            const Instruction* negated = divides ? definition(quotient->operands[0]) : nullptr;
            return negated != nullptr && negated->op == Op::neg &&
                   non_negative(negated->operands[0]) && non_negative(quotient->operands[1]);
        }
        case Op::rem:
        case Op::shift_right:
            return of(0);
        case Op::floormod:
            return of(1);
        case Op::cast:
            // A narrowing cast may wrap.
            return of(0) && size_of(function_.type(value).dtype) >=
                                size_of(function_.type(made->operands[0]).dtype);
        default:
            return false;
    }
}

Interval Facts::range(Value value) const {
    const auto known = ranges_.find(value);
    if (known != ranges_.end()) return known->second;
    const Instruction *made = definition(value), *loop = loop_of(value);
    Interval result = Interval::all(function_.type(value).dtype);
    if (made == nullptr) {
        if (loop != nullptr && loop->op == Op::for_loop && loop->blocks[0].arguments[0] == value) {
            result =
                Interval::integers(range(loop->operands[0]).low, range(loop->operands[1]).high);
        }
    } else if (made->op == Op::extent) {
        const std::int64_t extent =
            function_.ref_type(made->operands[0]).extents[made->get<AxisAttributes>().axis];
        result = extent == kDynamic ? Interval::integers(0, kMaxExtent)
                                    : Interval::integers(extent, extent);
    } else if (made->op == Op::program_id) {
        result = Interval::integers(0, kMaxPrograms - 1);
    } else if (made->op == Op::num_programs) {
        result = Interval::integers(1, kMaxPrograms);
    } else if (made->results.size() == 1) {
        result = result_range(function_, *made, [&](Value operand) { return range(operand); });
    }
    ranges_.emplace(value, result);
    return result;
}

}  // namespace tilewright::ir
