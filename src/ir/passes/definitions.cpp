// Instructions by result and by operand.
#include "ir/passes/definitions.h"

#include "ir/evaluate.h"

namespace tilewright::ir {

Definitions::Definitions(const Function& function) : function_(function) {
    walk(function.body, [&](const Instruction& made) {
        if (made.results.size() == 1 && made.blocks.empty()) definitions_[made.result()] = made;
        for (Value operand : made.operands) readers_[operand].push_back(made);
    });
}

const Instruction* Definitions::of(Value value) const {
    const auto at = definitions_.find(value);
    return at == definitions_.end() ? nullptr : &at->second;
}

const std::vector<Instruction>& Definitions::readers(Value value) const {
    static const std::vector<Instruction> none;
    const auto at = readers_.find(value);
    return at == readers_.end() ? none : at->second;
}

std::optional<double> Definitions::constant(Value value) const {
    const Instruction* const made = of(value);
    if (made == nullptr || made->op != Op::constant) return std::nullopt;
    return decode(function_.type(value).dtype, made->get<ConstantAttributes>().bits);
}

Value append_constant(Function& function, std::vector<Instruction>& to, const Type& type,
                      double value) {
    Instruction made;
    made.op = Op::constant;
    made.attributes = ConstantAttributes{encode(type.dtype, value)};
    made.results = {function.add_value(type)};
    to.push_back(std::move(made));
    return to.back().result();
}

}  // namespace tilewright::ir
