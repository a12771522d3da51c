// What a generated kernel does not do in the fastest way, and why.
#include "cuda/codegen/notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

/// Why a dot does not use tensor cores.
std::string why_multiply_adds(const ir::Function& function, const Instruction& dot) {
    const ir::Type& a = function.type(dot.operands[0]);
    const auto& attributes = dot.get<ir::DotAttributes>();
    if (a.dtype == DType::f32 && attributes.precision != ir::Precision::tf32)
        return "products of f32 are IEEE; precision tf32 rounds operands for tensor cores";
    if (!is_float(a.dtype) && size_of(a.dtype) > 1)
        return "tensor cores multiply integers of 8 bits only";
    return fmt::format(
        "tensor cores take 8 columns and 4 to 32 places of the contracted axis at least, but the "
        "operands are {} and {}",
        ir::to_string(a), ir::to_string(function.type(dot.operands[1])));
}

}  // namespace

std::vector<Note> notes_of(const KernelFacts& facts, const Plan& plan, bool workspace) {
    std::vector<Note> notes;
    const std::function<bool(Value, int)> feeds_dot = [&](Value value, int depth) {
        const auto& users = facts.users(value);
        return depth > 0 && std::any_of(users.begin(), users.end(), [&](const Instruction* user) {
                   return user->op == Op::dot ||
                          (user->blocks.empty() && user->results.size() == 1 &&
                           feeds_dot(user->result(), depth - 1));
               });
    };
    const std::function<void(const ir::Block&, const Instruction*)> visit =
        [&](const ir::Block& block, const Instruction* loop) {
            const auto staged = plan.staged.loops.find(loop);
            const std::vector<const Instruction*> streamed = staged == plan.staged.loops.end()
                                                                 ? std::vector<const Instruction*>()
                                                                 : staged->second.loads;
            for (const Instruction& made : block.body) {
                if (made.op == Op::dot && plan.dots.at(&made).unit == DotPlan::Unit::fma)
                    notes.push_back({"a product by multiply-adds instead of tensor cores",
                                     why_multiply_adds(facts.function(), made), made.location});
                if (made.op == Op::load && loop != nullptr && feeds_dot(made.result(), 4) &&
                    std::find(streamed.begin(), streamed.end(), &made) == streamed.end()) {
                    const std::string reason = plan.staged.refusals.at(&made);
                    notes.push_back(
                        {fmt::format("the load of `{}` is not pipelined",
                                     facts.function().value_name(made.operands[0])),
                         !reason.empty() ? reason
                         : facts.stages() == 1
                             ? "more than one stage does not fit in shared memory, or one was "
                               "asked for"
                             : "its indices depend on what the loop computes, or the loop writes "
                               "to the array",
                         made.location});
                }
                for (const ir::Block& inner : made.blocks)
                    visit(inner, made.op == Op::for_loop ? &made : nullptr);
            }
        };
    visit(facts.function().body, nullptr);
    if (workspace)
        notes.push_back({"scratch lies in global memory", "shared memory cannot hold it", {}});
    return notes;
}

}  // namespace tilewright::cuda
