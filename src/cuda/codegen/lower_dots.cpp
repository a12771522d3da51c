// Matrix products: operands in registers and in shared memory.
#include "cuda/codegen/lower_dots.h"

#include <algorithm>
#include <set>

#include "cuda/codegen/lower_memory.h"
#include "cuda/codegen/lower_shared.h"
#include "cuda/codegen/lower_values.h"
#include "cuda/codegen/mma_fragments.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

constexpr int kMaxHoistedWords = 32;  // more would spill

/// A left operand in registers that the instructions read as it is.
const Held* in_registers(const Lowering& cx, const DotPlan& plan, const DotOperand& operand) {
    if (operand.transposed || plan.unit != DotPlan::Unit::mma16) return nullptr;
    const Held* const held = cx.find(before_rounding(cx, operand.value));
    const bool stays =
        held != nullptr && conversion(held->layout, plan.a).kind == Conversion::Kind::relabel;
    return stays ? held : nullptr;
}

/// The copy of an operand in shared memory.
const SharedTile& operand_tile(Lowering& cx, const DotPlan& plan, const DotOperand& operand) {
    // The operands of byte products may differ in signedness.
    const bool as_stored = plan.unit == DotPlan::Unit::fma || plan.unit == DotPlan::Unit::mma8;
    const DType dtype = as_stored ? cx.type(operand.value).dtype : plan.operand;
    for (auto scope = cx.scopes.rbegin(); scope != cx.scopes.rend(); ++scope) {
        const auto found = scope->shared.find(operand.value);
        if (found != scope->shared.end() &&
            (plan.unit == DotPlan::Unit::fma || found->second.dtype == dtype)) {
            return found->second;
        }
    }
    auto& tile = cx.scopes.back().shared[operand.value];
    tile = shared_copy(cx, operand.value, dtype, plan.unit != DotPlan::Unit::fma);
    return tile;
}

/// Fragments that have been loaded before a loop.
const Fragments* hoisted(const Lowering& cx, const DotPlan& plan, const DotOperand& operand) {
    for (auto scope = cx.scopes.rbegin(); scope != cx.scopes.rend(); ++scope) {
        for (const Fragments& one : scope->fragments) {
            if (one.value == operand.value && one.transposed == operand.transposed &&
                one.held.layout == plan.a) {
                return &one;
            }
        }
    }
    return nullptr;
}

/// Also copies the operands of the next dots of the block, if available, for which one barrier is
/// enough.
void copy_operands_ahead(Lowering& cx, const Instruction& made) {
    if (cx.block == nullptr) return;
    bool after = false;
    for (const Instruction& other : cx.block->body) {
        if (&other == &made) {
            after = true;
        } else if (after && other.op == Op::dot) {
            const DotPlan& plan = cx.plan.dots.at(&other);
            for (int side = 0; side < 2; ++side) {
                const DotOperand operand = cx.facts.operand_of(other, side);
                if (cx.find(before_rounding(cx, operand.value)) == nullptr) continue;
                if (side == 0 && in_registers(cx, plan, operand) != nullptr) continue;
                operand_tile(cx, plan, operand);
            }
        }
    }
}

}  // namespace

void lower_dot(Lowering& cx, const Instruction& made) {
    const DotPlan& plan = cx.plan.dots.at(&made);
    const Value result = made.result();
    const DType dtype = cx.type(result).dtype;
    schedule::Value init;
    if (made.operands.size() > 2) {
        init = value_in(cx, made.operands[2], plan.accumulator);
    } else {
        schedule::Instruction& zero = cx.append(schedule::make(ir::Op::constant, {}));
        zero.attributes.push_back(schedule::element_attribute(dtype, 0));
        init = cx.result_of(zero, "", plan.accumulator, dtype).value;
    }
    const Held sums = cx.declare(fmt::format("v{}", result.id), plan.accumulator, dtype, init);
    const DotOperand left = cx.facts.operand_of(made, 0), right = cx.facts.operand_of(made, 1);
    const bool adds = plan.unit == DotPlan::Unit::fma;
    schedule::Instruction product =
        schedule::make(adds ? schedule::Op::multiply_add : schedule::Op::mma, {sums.value});
    std::optional<SharedTile> left_tile;
    if (const Held* const held = in_registers(cx, plan, left)) {
        const DType type = cx.program.type(held->value).type.dtype;
        product.operands.push_back(convert(cx, *held, plan.a, type).value);
    } else if (const Fragments* const fragments = hoisted(cx, plan, left)) {
        product.operands.push_back(fragments->held.value);
    } else {
        left_tile = operand_tile(cx, plan, left);
        product.operands.push_back(left_tile->value);
    }
    const SharedTile right_tile = operand_tile(cx, plan, right);
    product.operands.push_back(right_tile.value);
    copy_operands_ahead(cx, made);
    if (left_tile && left.transposed) product.flag("transpose_a");
    if (right.transposed) product.flag("transpose_b");
    product.with_symbol("reads", buffer_name(right_tile.buffer));
    if (left_tile) product.with_symbol("reads", buffer_name(left_tile->buffer));
    cx.append(std::move(product));
    cx.hold(result, sums);
}

void hoist_fragments(Lowering& cx, const Instruction& loop) {
    const std::set<Value> inside = Analysis::values_inside(loop);
    for (const ir::Block& body : loop.blocks) {
        ir::walk(body, [&](const Instruction& made) {
            if (made.op != Op::dot) return;
            const DotPlan& plan = cx.plan.dots.at(&made);
            for (int side = 0; side < 2; ++side) {
                const DotOperand operand = cx.facts.operand_of(made, side);
                if (inside.count(operand.value) != 0) continue;
                if (side == 0 && in_registers(cx, plan, operand) != nullptr) continue;
                cx.buffers_for = "`dot`";
                const SharedTile tile = operand_tile(cx, plan, operand);
                if (side == 1 || plan.unit != DotPlan::Unit::mma16 ||
                    plan.a.registers() / 2 > kMaxHoistedWords ||
                    hoisted(cx, plan, operand) != nullptr) {
                    continue;
                }
                schedule::Instruction& read = cx.append(schedule::Op::read_fragments);
                read.operands = {tile.value};
                if (operand.transposed) read.flag("transposed");
                read.with_symbol("reads", buffer_name(tile.buffer));
                const Held held = cx.result_of(read, cx.fresh("a"), plan.a, tile.dtype);
                cx.program.type(held.value).packed = true;
                cx.scopes.back().fragments.push_back({operand.value, operand.transposed, held});
            }
        });
    }
}

}  // namespace tilewright::cuda
