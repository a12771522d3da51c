// Sums that loops carry, of which each lane keeps its part until the loop ends.
#include "cuda/codegen/defer_sums.h"

#include <algorithm>

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

const Instruction* deferred_sum(const KernelFacts& facts, const Layouts& layouts,
                                const Instruction& loop, std::size_t carry) {
    const auto home = [&](Value value) { return home_of(facts, layouts, value); };
    const ir::Block& body = loop.blocks[0];
    const Value argument = body.arguments[carry + 1];
    const Value next = body.terminator().operands[carry];
    const Instruction* update = facts.definition(next);
    if (update == nullptr || facts.type(argument).is_scalar() ||
        facts.type(argument).dtype != DType::f32 ||
        facts.users(argument) != std::vector<const Instruction*>{update} ||
        facts.users(next).size() != 1) {
        return nullptr;
    }
    const auto is_exponential = [&](Value value) {
        const Instruction* made = facts.definition(value);
        return made != nullptr && (made->op == Op::exp || made->op == Op::exp2);
    };
    Value added;
    if (update->op == Op::add) {
        added = update->operands[update->operands[0] == argument ? 1 : 0];
    } else if (update->op == Op::fma && update->operands[2] != argument &&
               is_exponential(update->operands[update->operands[0] == argument ? 1 : 0])) {
        added = update->operands[2];
    } else {
        return nullptr;
    }
    const Instruction* sum = facts.definition(added);
    if (sum == nullptr || sum->op != Op::reduce || facts.users(added).size() != 1 ||
        sum->get<ir::ReduceAttributes>().kind != ir::Reduction::sum) {
        return nullptr;
    }
    const bool inside = std::any_of(body.body.begin(), body.body.end(),
                                    [&](const Instruction& each) { return &each == sum; });
    const int axis = sum->get<ir::ReduceAttributes>().axis;
    const Layout from = home(sum->operands[0]), to = from.without(axis);
    const bool in_warp = std::none_of(from.warp.begin(), from.warp.end(), [&](std::uint64_t basis) {
        return from.unpack(basis)[axis] != 0;
    });
    return inside && in_warp && to == home(argument) && to == home(next) && to == home(added)
               ? sum
               : nullptr;
}

}  // namespace

DeferredSums defer_sums(const KernelFacts& facts, const Layouts& layouts) {
    DeferredSums sums;
    ir::walk(facts.function().body, [&](const Instruction& made) {
        if (made.op != Op::for_loop) return;
        std::vector<const Instruction*> found;
        for (std::size_t i = 0; i < made.results.size(); ++i) {
            found.push_back(deferred_sum(facts, layouts, made, i));
        }
        if (std::any_of(found.begin(), found.end(), [](const auto* one) { return one != nullptr; }))
            sums[&made] = std::move(found);
    });
    return sums;
}

}  // namespace tilewright::cuda
