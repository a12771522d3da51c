// Readers are collected first; the rewrite is a walk over the function's own block.
#include "ir/passes/soft_caps.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "ir/passes/dce.h"
#include "ir/passes/definitions.h"

namespace tilewright::ir {
namespace {

class SoftCaps {
  public:
    explicit SoftCaps(Function& function) : function_(function), definitions_(function) {}

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
        const std::vector<Instruction>& readers = definitions_.readers(result);
        return function_.type(result).dtype == DType::f32 && !made.get<MathAttributes>().approx &&
               std::all_of(readers.begin(), readers.end(),
                           [&](const Instruction& reader) { return is_tolerant(reader, result); });
    }

    /// Does a reader of a tanh need no relative accuracy? Nested blocks yield to unknown readers.
    bool is_tolerant(const Instruction& reader, Value result) const {
        constexpr double kMost = 128;
        if (reader.operands.size() != 2) return false;
        const Value other = reader.operands[reader.operands[0] == result ? 1 : 0];
        const std::optional<double> constant = definitions_.constant(other);
        if (reader.op == Op::mul) {
            return other == result || (constant && std::abs(*constant) <= kMost);
        }
        return (reader.op == Op::add || reader.op == Op::sub) && constant.has_value();
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

    void rewrite(const Instruction& tanh) {
        const Type type = function_.type(tanh.result());
        std::vector<Instruction>& to = function_.body.body;
        const Value two = append_constant(function_, to, type, 2),
                    minus_one = append_constant(function_, to, type, -1);
        const Value doubled = append(Op::mul, {tanh.operands[0], two}, function_.add_value(type));
        const Value logistic = append(Op::logistic, {doubled}, function_.add_value(type));
        append(Op::fma, {logistic, two, minus_one}, tanh.result());
    }

    Function& function_;
    Definitions definitions_;
};

}  // namespace

SoftCapsReport soft_caps(Function& function) {
    SoftCaps caps(function);
    caps.run();
    if (caps.report.changed()) dce(function);
    return caps.report;
}

}  // namespace tilewright::ir
