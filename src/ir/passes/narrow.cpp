// Interval arithmetic forwards through a function; what fits in i32 is computed as i32.
#include "ir/passes/narrow.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/passes/dce.h"
#include "ir/passes/range_ops.h"

namespace tilewright::ir {
namespace {

class Narrower {
  public:
    Narrower(Function& function, std::map<Value, Interval> ranges)
        : function_(function), ranges_(std::move(ranges)) {}

    void run(Block& block) {
        const std::map<Value, Value> outer = narrow_;
        std::vector<Instruction> body;
        body.swap(block.body);
        for (Instruction& instruction : body) {
            for (Block& inner : instruction.blocks) run(inner);
            visit(block, std::move(instruction));
        }
        narrow_ = outer;  // values of a block are not visible outside it
    }

    NarrowReport report;

  private:
    DType dtype(Value value) const { return function_.type(value).dtype; }

    Interval range(Value value) const {
        const auto known = ranges_.find(value);
        return known == ranges_.end() ? Interval::all(dtype(value)) : known->second;
    }

    bool fits(Value value) const { return range(value).fits_i32(); }

    /// Ops that give the same number from operands with fewer bits, if all of them fit.
    static bool same_in_fewer_bits(Op op) {
        switch (op) {
            case Op::neg:
            case Op::abs:
            case Op::sign:
            case Op::bitwise_not:
            case Op::add:
            case Op::sub:
            case Op::mul:
            case Op::min:
            case Op::max:
            case Op::bitwise_and:
            case Op::bitwise_or:
            case Op::bitwise_xor:
            case Op::eq:
            case Op::ne:
            case Op::lt:
            case Op::le:
            case Op::gt:
            case Op::ge:
            case Op::select:
            case Op::clamp:
            case Op::broadcast:
            case Op::expand_dims:
                return true;
            default:
                return false;
        }
    }

    bool may_narrow(const Instruction& instruction) const {
        const auto operand = [&](std::size_t i) { return range(instruction.operands[i]); };
        switch (instruction.op) {
            case Op::shift_left:
            case Op::shift_right:  // the width decides which counts shift everything out
                return !operand(1).any && operand(1).low >= 0 && operand(1).high < 32;
            case Op::div:
            case Op::floordiv:
            case Op::rem:
            case Op::floormod:  // results of division by 0 and by -1 depend on the width
                return operand(1).low > 0;
            case Op::cast:
                return !is_float(dtype(instruction.operands[0])) &&
                       dtype(instruction.result()) != DType::i32;
            default:
                return same_in_fewer_bits(instruction.op);
        }
    }

    void visit(Block& block, Instruction instruction) {
        if (instruction.results.size() == 1 && !function_.is_ref(instruction.result())) {
            ranges_[instruction.result()] =
                result_range(function_, instruction, [&](Value value) { return range(value); });
            if (may_narrow(instruction) && rewrite(block, instruction)) return;
        }
        block.body.push_back(std::move(instruction));
    }

    /// Appends the instruction on i32; false if something does not fit.
    bool rewrite(Block& block, const Instruction& instruction) {
        const auto is_wide = [&](Value value) { return dtype(value) == DType::i64; };
        const Value result = instruction.result();
        const auto& in = instruction.operands;
        if (is_wide(result) && !fits(result)) return false;
        const bool wide_operands = std::any_of(in.begin(), in.end(), is_wide);
        if (!is_wide(result) && !wide_operands) return false;
        if (!std::all_of(in.begin(), in.end(),
                         [&](Value value) { return !is_wide(value) || fits(value); })) {
            return false;
        }
        Instruction made = instruction;
        for (Value& operand : made.operands) {
            if (is_wide(operand)) operand = narrowed(block, operand);
        }
        ++report.instructions;
        if (!is_wide(result)) {
            block.body.push_back(std::move(made));
            return true;
        }
        Type type = function_.type(result);
        type.dtype = DType::i32;
        const Value small = function_.add_value(type);
        narrow_[result] = small;
        if (made.op == Op::cast && dtype(made.operands[0]) == DType::i32) {
            narrow_[result] = made.operands[0];
        } else {
            made.results = {small};
            block.body.push_back(std::move(made));
        }
        cast(block, narrow_[result], result);
        return true;
    }

    /// The value as i32, cast here unless it exists already.
    Value narrowed(Block& block, Value value) {
        const auto found = narrow_.find(value);
        if (found != narrow_.end()) return found->second;
        Type type = function_.type(value);
        type.dtype = DType::i32;
        const Value small = function_.add_value(type);
        cast(block, value, small);
        narrow_[value] = small;
        return small;
    }

    static void cast(Block& block, Value from, Value to) {
        Instruction instruction;
        instruction.op = Op::cast;
        instruction.operands = {from};
        instruction.results = {to};
        block.body.push_back(std::move(instruction));
    }

    Function& function_;
    std::map<Value, Interval> ranges_;
    std::map<Value, Value> narrow_;  ///< i64 to the i32 that equals it
};

}  // namespace

NarrowReport narrow(Function& function, const std::map<Value, Interval>& ranges) {
    Narrower narrower(function, ranges);
    narrower.run(function.body);
    if (narrower.report.changed()) dce(function);
    return narrower.report;
}

}  // namespace tilewright::ir
