// Which loads go to shared memory for dots, and which of them run ahead of a loop's iterations.
#include "cuda/codegen/stage_loads.h"

#include <algorithm>
#include <functional>

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

constexpr std::int64_t kStreamBytes = 64 * 1024;  // leaves room for two blocks on a multiprocessor
constexpr int kMaxStages = 4;

std::string refusal(const KernelFacts& facts, const DotPlans& dots, const Instruction& load) {
    const ir::Access access = ir::access(load);
    const auto& attributes = load.get<ir::AccessAttributes>();
    const ir::Type& tile = facts.type(load.result());
    if (tile.shape.rank() < 2 || tile.shape.rank() > 3) return "the tile has not 2 or 3 axes";
    if (attributes.has_mask) return "it has a mask";
    if (facts.function().ref_type(access.ref).space != ir::Space::global) return "it reads scratch";
    if (tile.shape.size() == 0) return "the tile is empty";
    if (access.other && !facts.is_constant(access.other, 0)) return "its `other` is not 0";
    for (const ir::Index& index : attributes.indices) {
        if (index.kind == ir::Index::Kind::tile) return "it gathers by an index tile";
    }
    int axis = -1;
    const int vector = facts.contiguous_vector(load, &axis);
    if (vector * size_of(tile.dtype) != 16 || axis != tile.shape.rank() - 1)
        return "its rows are not made of aligned pieces of 16 bytes";
    // All readers are dots, perhaps of a transpose that the dot absorbs.
    const std::function<bool(Value)> only_dots = [&](Value value) {
        const auto& users = facts.users(value);
        return !users.empty() &&
               std::all_of(users.begin(), users.end(), [&](const Instruction* user) {
                   if (user->op == Op::transpose) return only_dots(user->result());
                   if (user->op != Op::dot) return false;
                   const DotPlan& plan = dots.at(user);
                   return (user->operands.size() < 3 || user->operands[2] != value) &&
                          plan.operand == tile.dtype && plan.unit != DotPlan::Unit::fma &&
                          (facts.operand_of(*user, 0).value == load.result() ||
                           facts.operand_of(*user, 1).value == load.result());
               });
    };
    if (!only_dots(load.result()))
        return "what reads it is no product of tensor cores, or a cast stands between";
    return {};
}

/// Bytes of a tile in shared memory as products read it.
std::int64_t staged_bytes(const ir::Type& tile) {
    std::int64_t rows = 1;
    const int last = tile.shape.rank() - 1;
    for (int axis = 0; axis < last; ++axis) rows *= cover(tile.shape[axis]).size();
    return rows * std::max<std::int64_t>(cover(tile.shape[last]).size() * size_of(tile.dtype), 16);
}

StagedLoop stage_loop(const KernelFacts& facts, const StagedLoads& staged,
                      const Instruction& loop) {
    StagedLoop result;
    const std::set<Value> inside = Analysis::values_inside(loop);
    const std::set<Value> written = written_in(facts, loop);
    std::int64_t bytes = 0;
    for (const Instruction& each : loop.blocks[0].body) {
        if (!staged.contains(each) || written.count(facts.root(each.operands[0])) != 0) continue;
        const auto indices = ir::access(each).indices;
        if (!std::all_of(indices.begin(), indices.end(), [&](Value operand) {
                return is_computable(facts, operand, inside, loop.blocks[0].arguments[0]);
            })) {
            continue;
        }
        result.loads.push_back(&each);
        bytes += staged_bytes(facts.type(each.result()));
    }
    result.stages = facts.stages();
    if (result.stages == 0 && bytes > 0) {
        result.stages =
            static_cast<int>(std::clamp<std::int64_t>(kStreamBytes / bytes, 2, kMaxStages));
    }
    return result;
}

}  // namespace

StagedLoads stage_loads(const KernelFacts& facts, const DotPlans& dots) {
    StagedLoads staged;
    ir::walk(facts.function().body, [&](const Instruction& made) {
        if (made.op == Op::load) staged.refusals[&made] = refusal(facts, dots, made);
    });
    if (facts.stages() == 1) return staged;
    ir::walk(facts.function().body, [&](const Instruction& made) {
        if (made.op != Op::for_loop) return;
        StagedLoop loop = stage_loop(facts, staged, made);
        if (!loop.loads.empty()) staged.loops[&made] = std::move(loop);
    });
    return staged;
}

}  // namespace tilewright::cuda
