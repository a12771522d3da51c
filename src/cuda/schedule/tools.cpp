// Definitions and uses of values, sizes of rings.
#include "cuda/schedule/tools.h"

#include <fmt/format.h>

#include <algorithm>

#include "support/debug_log.h"

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

std::int64_t slots_of_ring(const Program& program, std::int64_t room, std::int64_t most) {
    constexpr int kMostStages = 8;
    if (program.stages > kMostStages) {
        throw Refused(fmt::format("{} stages are asked for, and it has at most {}", program.stages,
                                  kMostStages));
    }
    const std::int64_t asked = program.stages == 0 ? most : std::max(program.stages, 2);
    const std::int64_t slots = std::min({room, most, asked});
    if (program.stages != 0 && slots != program.stages) {
        debug_log(program.name, "num_stages {} is not used: its ring has {} slots", program.stages,
                  slots);
    }
    return slots;
}

}  // namespace tilewright::cuda::schedule
