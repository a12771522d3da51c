// In which order the programs of a kernel start, and how many blocks share a multiprocessor.
#include "cuda/codegen/launch_plan.h"

#include <algorithm>
#include <functional>

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

bool is_light(const KernelFacts& facts, const Layouts& layouts) {
    constexpr int kMostWords = 24;  // loaded by a thread
    bool light = 32 * facts.warps() == 512;
    int words = 0;
    ir::walk(facts.function().body, [&](const Instruction& made) {
        light = light && made.op != Op::dot;
        for (Value result : made.results) {
            if (facts.type(result).is_scalar()) continue;
            light = light && made.blocks.empty();
            if (made.op != Op::load) continue;
            words += home_of(facts, layouts, result).registers() *
                     std::max(size_of(facts.type(result).dtype), 2) / 4;
        }
    });
    return light && words <= kMostWords;
}

/// Does the end of a loop depend on the program, and its start not? Then it grows with it.
bool has_growing_loops(const KernelFacts& facts) {
    bool longest_last = false;
    std::function<bool(Value, int)> depends = [&](Value value, int depth) -> bool {
        const Instruction* made = depth > 16 ? nullptr : facts.definition(value);
        if (made == nullptr) return false;
        if (made->op == Op::program_id) return true;
        if (made->op == Op::min &&
            ((facts.is_constant(made->operands[0], 0) && facts.non_negative(made->operands[1])) ||
             (facts.is_constant(made->operands[1], 0) && facts.non_negative(made->operands[0])))) {
            return false;  // a min that is 0
        }
        return std::any_of(made->operands.begin(), made->operands.end(), [&](Value operand) {
            return !facts.function().is_ref(operand) && depends(operand, depth + 1);
        });
    };
    ir::walk(facts.function().body, [&](const Instruction& instruction) {
        if (instruction.op != Op::for_loop) return;
        longest_last |= depends(instruction.operands[1], 0) && !depends(instruction.operands[0], 0);
    });
    return longest_last;
}

}  // namespace

LaunchPlan plan_launch(const KernelFacts& facts, const Layouts& layouts, const DotPlans& dots) {
    LaunchPlan plan;
    plan.last_first = has_growing_loops(facts);
    plan.blocks = is_light(facts, layouts) ? 2 : dots.empty() ? 1 : 0;
    return plan;
}

}  // namespace tilewright::cuda
