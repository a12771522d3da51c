// Loads that are issued ahead of their use: copied to shared memory for dots, or prefetched
// iterations ahead in loops.
#include "cuda/codegen/lower_ahead.h"

#include <algorithm>
#include <array>

#include "cuda/codegen/lower_memory.h"
#include "cuda/codegen/lower_operations.h"
#include "cuda/codegen/lower_shared.h"
#include "cuda/codegen/lower_values.h"
#include "cuda/schedule/array_access.h"
#include "support/check.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

bool is_renewable(const Lowering& cx, Value value, int depth = 0) {
    constexpr int kMostOperations = 4;
    const Instruction* made = cx.facts.definition(value);
    if (made == nullptr || depth > kMostOperations) return false;
    if (cx.packed.count(value) != 0 || cx.plan.loads.repeated.count(value) != 0 ||
        cx.facts.is_index_math(value)) {
        return true;
    }
    if (ir::is_view(made->op)) {
        return made->op == Op::broadcast || is_renewable(cx, made->operands[0], depth + 1);
    }
    switch (made->op) {
        case Op::add:
        case Op::sub:
        case Op::mul:
        case Op::neg:
        case Op::fma:
        case Op::cast:
            break;
        default:
            return false;
    }
    return is_float(cx.type(value).dtype) &&
           std::all_of(made->operands.begin(), made->operands.end(), [&](Value operand) {
               return cx.type(operand).is_scalar() || is_renewable(cx, operand, depth + 1);
           });
}

}  // namespace

void copy_to_shared(Lowering& cx, const Instruction& load, const SharedTile& tile,
                    std::vector<schedule::Value> indices, schedule::Value slot) {
    schedule::Instruction same = schedule::make(schedule::Op::copy_tile, std::move(indices));
    describe_access(cx, same, load, 1);
    same.with("row_bytes", tile.row_bytes)
        .with("group", tile.group)
        .with_symbol("to", buffer_name(tile.buffer));
    if (slot) {
        same.operands.push_back(slot);
        same.flag("slotted");
    }
    cx.append(std::move(same));
}

void lower_staged(Lowering& cx, const Instruction& load) {
    const Value result = load.result();
    SharedTile tile = shared_tile(cx, cx.type(result).shape, cx.type(result).dtype, true);
    cx.access_shared("writes", {tile.buffer});
    std::vector<schedule::Value> indices;
    for (Value operand : ir::access(load).indices) indices.push_back(scalar_of(cx, operand));
    cx.comment("staged in shared memory, rows of {} bytes", tile.row_bytes);
    copy_to_shared(cx, load, tile, std::move(indices));
    cx.append(schedule::Op::commit_copies);
    cx.access_shared("copies", {tile.buffer});
    hold_copied(cx, tile);
    cx.scopes.back().shared[result] = tile;
}

// ---- Values of a later iteration of a loop.

schedule::Value recompute(Lowering& cx, Value value, const std::set<Value>& inside, Value induction,
                          schedule::Value at) {
    if (value == induction) return at;
    const Instruction* made = cx.facts.definition(value);
    if (inside.count(value) == 0 || !ir::is_elementwise(made->op)) return scalar_of(cx, value);
    schedule::Instruction same = schedule::tile_instruction(cx.function, *made);
    for (Value operand : made->operands) {
        same.operands.push_back(recompute(cx, operand, inside, induction, at));
    }
    const std::string name = cx.fresh("n");
    return cx.result_of(cx.append(std::move(same)), name, cx.scalar_layout(), cx.type(value).dtype)
        .value;
}

void prefetch(Lowering& cx, std::span<const Instruction* const> loads, schedule::Value at) {
    const Instruction& loop = *cx.prefetched.at(loads.front()->result()).loop;
    const std::set<Value> inside = Analysis::values_inside(loop);
    cx.open(schedule::make(schedule::Op::scope, {at, scalar_of(cx, loop.operands[1])}));
    for (const Instruction* load : loads) {
        const Prefetched& ahead = cx.prefetched.at(load->result());
        std::vector<schedule::Value> indices;
        for (Value operand : ir::access(*load).indices) {
            indices.push_back(recompute(cx, operand, inside, loop.blocks[0].arguments[0], at));
        }
        schedule::Instruction same = array_access(cx, *load, ahead.next.layout, std::move(indices));
        same.operands.push_back(ahead.next.value);
        cx.append(std::move(same)).flag("into");
    }
    cx.close();
}

// ---- Elements that stay packed.

void keep_packed(Lowering& cx) {
    if (!cx.plan.loads.is_wide) return;
    const auto is_repeated = [&](Value value) { return cx.plan.loads.repeated.count(value) != 0; };
    for (const auto& [value, packed] : cx.packed) {
        if (is_repeated(value) || cx.find(value) == nullptr) continue;
        cx.append(schedule::Op::keep_words).operands = {packed};
    }
    for (Scope& scope : cx.scopes) {
        for (auto held = scope.held.begin(); held != scope.held.end();) {
            const Value value = held->first;
            const bool tile = !cx.type(value).is_scalar() && cx.facts.definition(value) != nullptr;
            const bool again = tile && (is_repeated(value) ||
                                        (cx.packed.count(value) == 0 && is_renewable(cx, value)));
            if (again) cx.forgotten.insert(value);
            held = again ? scope.held.erase(held) : std::next(held);
        }
    }
}

}  // namespace tilewright::cuda
