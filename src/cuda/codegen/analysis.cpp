// Uses, divisors, signs and places of values.
#include "cuda/codegen/analysis.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "ir/passes/range_ops.h"

namespace tilewright::cuda {
namespace {

using ir::Op;
using ir::Value;

constexpr std::int64_t kLargeDivisor = std::int64_t{1} << 40;  // of zero, say
constexpr int kMaxIndexMath = 48;                              // instructions worth computing again
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 40;     // docs/reference/ir.md, section 1
constexpr std::int64_t kMaxPrograms = std::int64_t{1} << 31;   // what a launch takes

std::int64_t power_of_two_in(std::int64_t value) {
    if (value == 0) return kLargeDivisor;
    return std::min(kLargeDivisor, value & -value);
}

}  // namespace

Analysis::Analysis(const ir::Function& function) : function_(function) {
    visit(function.body);
}

void Analysis::visit(const ir::Block& block) {
    for (const ir::Instruction& instruction : block.body) {
        for (Value result : instruction.results) definitions_[result] = &instruction;
        for (Value operand : instruction.operands) users_[operand].push_back(&instruction);
        if (ir::is_access(instruction.op) && instruction.op != Op::load) {
            written_.insert(root(instruction.operands[0]));
        }
        for (const ir::Block& inner : instruction.blocks) {
            for (Value argument : inner.arguments) loops_[argument] = &instruction;
            visit(inner);
        }
    }
}

const ir::Instruction* Analysis::definition(Value value) const {
    const auto found = definitions_.find(value);
    return found == definitions_.end() ? nullptr : found->second;
}

const std::vector<const ir::Instruction*>& Analysis::users(Value value) const {
    static const std::vector<const ir::Instruction*> kNone;
    const auto found = users_.find(value);
    return found == users_.end() ? kNone : found->second;
}

const ir::Instruction* Analysis::loop_of(Value value) const {
    const auto found = loops_.find(value);
    return found == loops_.end() ? nullptr : found->second;
}

const ir::Instruction* Analysis::constant(Value value) const {
    const ir::Instruction* made = definition(value);
    while (made != nullptr && is_view(made->op)) made = definition(made->operands[0]);
    return made != nullptr && made->op == Op::constant ? made : nullptr;
}

bool Analysis::is_constant(Value value, std::uint64_t bits) const {
    const ir::Instruction* made = constant(value);
    return made != nullptr && made->get<ir::ConstantAttributes>().bits == bits;
}

std::int64_t Analysis::divisor(Value value) const {
    const ir::Instruction* made = definition(value);
    if (made == nullptr) {
        const ir::Instruction* loop = loop_of(value);
        if (loop == nullptr || loop->op != Op::for_loop || loop->blocks[0].arguments[0] != value) {
            return 1;
        }
        return std::min(divisor(loop->operands[0]), divisor(loop->operands[2]));
    }
    const auto of = [&](std::size_t i) { return divisor(made->operands[i]); };
    switch (made->op) {
        case Op::constant:
            return power_of_two_in(
                static_cast<std::int64_t>(made->get<ir::ConstantAttributes>().bits));
        case Op::extent: {
            const auto& type = function_.ref_type(made->operands[0]);
            const std::int64_t extent =
                type.extents[static_cast<std::size_t>(made->get<ir::AxisAttributes>().axis)];
            return extent == ir::kDynamic ? 1 : power_of_two_in(extent);
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

bool Analysis::non_negative(Value value) const {
    const ir::Instruction* made = definition(value);
    if (made == nullptr) {
        const ir::Instruction* loop = loop_of(value);
        return loop != nullptr && loop->op == Op::for_loop &&
               loop->blocks[0].arguments[0] == value && non_negative(loop->operands[0]);
    }
    const auto of = [&](std::size_t i) { return non_negative(made->operands[i]); };
    switch (made->op) {
        case Op::constant:
            return static_cast<std::int64_t>(made->get<ir::ConstantAttributes>().bits) >= 0;
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
        case Op::neg: {  // -floordiv(-x, y), as cdiv rounds up, or a shift for it
            const ir::Instruction* quotient = definition(made->operands[0]);
            const bool divides = quotient != nullptr &&
                                 (quotient->op == Op::floordiv || quotient->op == Op::shift_right);
            const ir::Instruction* negated = divides ? definition(quotient->operands[0]) : nullptr;
            return negated != nullptr && negated->op == Op::neg &&
                   non_negative(negated->operands[0]) && non_negative(quotient->operands[1]);
        }
        case Op::rem:
        case Op::shift_right:
            return of(0);
        case Op::floormod:
            return of(1);
        case Op::cast:
            // Narrowing may wrap.
            return ir::Op::cast == made->op && of(0) &&
                   size_of(function_.type(value).dtype) >=
                       size_of(function_.type(made->operands[0]).dtype);
        default:
            return false;
    }
}

ir::Interval Analysis::range(Value value) const {
    const auto known = ranges_.find(value);
    if (known != ranges_.end()) return known->second;
    const ir::Instruction *made = definition(value), *loop = loop_of(value);
    ir::Interval result = ir::Interval::all(function_.type(value).dtype);
    if (made == nullptr) {
        if (loop != nullptr && loop->op == Op::for_loop && loop->blocks[0].arguments[0] == value) {
            result =
                ir::Interval::integers(range(loop->operands[0]).low, range(loop->operands[1]).high);
        }
    } else if (made->op == Op::extent) {
        const std::int64_t extent =
            function_.ref_type(made->operands[0])
                .extents[static_cast<std::size_t>(made->get<ir::AxisAttributes>().axis)];
        result = extent == ir::kDynamic ? ir::Interval::integers(0, kMaxExtent)
                                        : ir::Interval::integers(extent, extent);
    } else if (made->op == Op::program_id) {
        result = ir::Interval::integers(0, kMaxPrograms - 1);
    } else if (made->op == Op::num_programs) {
        result = ir::Interval::integers(1, kMaxPrograms);
    } else if (made->results.size() == 1) {
        result = ir::result_range(function_, *made, [&](Value operand) { return range(operand); });
    }
    ranges_.emplace(value, result);
    return result;
}

bool Analysis::is_view(Op op) {
    return op == Op::broadcast || op == Op::expand_dims || op == Op::transpose || op == Op::reshape;
}

int Analysis::index_math_size(Value value) const {
    const auto known = index_math_.find(value);
    if (known != index_math_.end()) return known->second;
    int size = kMaxIndexMath + 1;
    const ir::Instruction* made = definition(value);
    if (function_.type(value).is_scalar()) {
        size = 0;
    } else if (made != nullptr) {
        const ir::FunctionInfo* const function = ir::function_info(made->op);
        const bool is_long = function != nullptr && function->work == ir::Work::long_function;
        const bool cheap = is_view(made->op) || made->op == Op::constant || made->op == Op::iota ||
                           (ir::is_elementwise(made->op) && !is_long);
        if (cheap) {
            size = 1;
            for (Value operand : made->operands) size += index_math_size(operand);
            size = std::min(size, kMaxIndexMath + 1);
        }
    }
    index_math_[value] = size;
    return size;
}

bool Analysis::is_index_math(Value value) const {
    return index_math_size(value) <= kMaxIndexMath;
}

std::set<Value> Analysis::values_inside(const ir::Instruction& instruction) {
    std::set<Value> values;
    for (const ir::Block& block : instruction.blocks) {
        values.insert(block.arguments.begin(), block.arguments.end());
        ir::walk(block, [&](const ir::Instruction& inner) {
            values.insert(inner.results.begin(), inner.results.end());
            for (const ir::Block& deeper : inner.blocks) {
                values.insert(deeper.arguments.begin(), deeper.arguments.end());
            }
        });
    }
    return values;
}

Value Analysis::root(Value ref) const {
    const int group = function_.ref_type(ref).alias_group;
    if (group < 0) return ref;
    for (Value parameter : function_.parameters()) {
        if (function_.is_ref(parameter) && function_.ref_type(parameter).alias_group == group) {
            return parameter;
        }
    }
    return ref;
}

}  // namespace tilewright::cuda
