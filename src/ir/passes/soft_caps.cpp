// Readers are collected first; the rewrite is a walk over the function's own block.
#include "ir/passes/soft_caps.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ir/evaluate.h"
#include "ir/passes/dce.h"

namespace tilewright::ir {
namespace {

class SoftCaps {
  public:
    explicit SoftCaps(Function& function) : function_(function) {
        walk(function.body, [&](const Instruction& made) {
            if (made.op == Op::constant) {
                constants_[made.result()] =
                    decode(function.type(made.result()).dtype, made.get<ConstantAttributes>().bits);
            }
            for (Value operand : made.operands) readers_[operand].push_back(made);
        });
    }

    void run() {
        std::vector<Instruction> body;
        body.swap(function_.body.body);
        for (Instruction& made : body) {
            const bool found = made.op == Op::tanh && is_soft_cap(made);
            if (found) {
                rewrite(made);
                ++report.functions;
            } else {
                function_.body.body.push_back(std::move(made));
            }
        }
    }

    SoftCapsReport report;

  private:
    bool is_soft_cap(const Instruction& made) {
        const Value result = made.result();
        const std::vector<Instruction>& readers = readers_[result];
        return function_.type(result).dtype == DType::f32 && !made.get<MathAttributes>().approx &&
               std::all_of(readers.begin(), readers.end(),
                           [&](const Instruction& reader) { return is_tolerant(reader, result); });
    }

    /// Does a reader of a tanh need no relative accuracy? Nested blocks yield to unknown readers.
    bool is_tolerant(const Instruction& reader, Value result) const {
        constexpr double kMost = 128;
        if (reader.operands.size() != 2) return false;
        const Value other = reader.operands[reader.operands[0] == result ? 1 : 0];
        const auto constant = constants_.find(other);
        const bool is_constant = constant != constants_.end();
        if (reader.op == Op::mul) {
            return other == result || (is_constant && std::abs(constant->second) <= kMost);
        }
        return (reader.op == Op::add || reader.op == Op::sub) && is_constant;
    }

    Value append(Op op, std::vector<Value> operands, Value result) {
        Instruction made;
        made.op = op;
        made.operands = std::move(operands);
        made.results = {result};
        if (op == Op::logistic) made.attributes = MathAttributes{.approx = true};
        function_.body.body.push_back(std::move(made));
        return result;
    }
    Value constant(double value, const Type& type) {
        Instruction made;
        made.op = Op::constant;
        made.attributes = ConstantAttributes{encode(type.dtype, value)};
        made.results = {function_.add_value(type)};
        function_.body.body.push_back(made);
        return made.result();
    }

    void rewrite(const Instruction& tanh) {
        const Type type = function_.type(tanh.result());
        const Value two = constant(2, type), minus_one = constant(-1, type);
        const Value doubled = append(Op::mul, {tanh.operands[0], two}, function_.add_value(type));
        const Value logistic = append(Op::logistic, {doubled}, function_.add_value(type));
        append(Op::fma, {logistic, two, minus_one}, tanh.result());
    }

    Function& function_;
    std::map<Value, double> constants_;
    std::map<Value, std::vector<Instruction>> readers_;
};

}  // namespace

SoftCapsReport soft_caps(Function& function) {
    SoftCaps caps(function);
    caps.run();
    if (caps.report.changed()) dce(function);
    return caps.report;
}

}  // namespace tilewright::ir
