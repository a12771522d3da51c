// Definitions and uses of values.
#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {

Uses::Uses(const Program& program) {
    each_instruction(program.body, [&](const Instruction& made) {
        for (Value result : made.results) definitions_[result] = &made;
        for (Value operand : made.operands) users_[operand].push_back(&made);
    });
}

const Instruction* Uses::definition(Value value) const {
    const auto found = definitions_.find(value);
    return found == definitions_.end() ? nullptr : found->second;
}

const std::vector<const Instruction*>& Uses::users(Value value) const {
    static const std::vector<const Instruction*> none;
    const auto found = users_.find(value);
    return found == users_.end() ? none : found->second;
}

std::optional<std::int64_t> constant_of(const Program& program, Value value) {
    std::optional<std::int64_t> result;
    each_instruction(program.body, [&](const Instruction& made) {
        if (made.is(ir::Op::constant) && made.result() == value) {
            result = made.attributes[0].numbers[0];
        }
    });
    return result;
}

}  // namespace tilewright::cuda::schedule
