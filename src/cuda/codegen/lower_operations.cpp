// Blocks, instructions and elementwise operations.
#include "cuda/codegen/lower_operations.h"

#include <algorithm>
#include <cctype>

#include "cuda/codegen/lower_dots.h"
#include "cuda/codegen/lower_lanes.h"
#include "cuda/codegen/lower_loops.h"
#include "cuda/codegen/lower_memory.h"
#include "cuda/codegen/lower_print.h"
#include "cuda/codegen/lower_scans.h"
#include "cuda/codegen/lower_shared.h"
#include "cuda/codegen/lower_sort.h"
#include "cuda/codegen/lower_values.h"
#include "ir/print.h"
#include "support/check.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

void comment(Lowering& cx, const Instruction& made) {
    // describe() numbers values from 0, operands before results; the text names them by handle.
    std::vector<Value> order;
    for (const auto* values : {&made.operands, &made.results}) {
        for (Value value : *values) {
            const bool named = !cx.function.value_name(value).empty();
            if (!named && std::find(order.begin(), order.end(), value) == order.end()) {
                order.push_back(value);
            }
        }
    }
    const std::string text = ir::describe(cx.function, made);
    std::string renamed;
    for (std::size_t i = 0; i < text.size(); ++i) {
        renamed += text[i] == '\n' ? ' ' : text[i];
        if (text[i] != '%' || i + 1 >= text.size() || !std::isdigit(text[i + 1])) continue;
        std::size_t number = 0;
        while (i + 1 < text.size() && std::isdigit(text[i + 1])) {
            number = number * 10 + static_cast<std::size_t>(text[++i] - '0');
        }
        renamed += number < order.size() ? fmt::format("{}", order[number].id) : "?";
    }
    const bool marked = cx.target.mark_lines && made.location.line > 0;
    cx.comment("{}{}", marked ? fmt::format("@{} ", made.location.line) : "", renamed);
}

void lower_operation(Lowering& cx, const Instruction& made) {
    if (cx.facts.is_lazy(made)) return;
    const bool with_blocks = !made.blocks.empty();
    if (!with_blocks && made.op != Op::debug_check) {
        comment(cx, made);
    }
    switch (made.op) {
        case Op::program_id:
        case Op::num_programs:
        case Op::extent: {
            schedule::Instruction& same = cx.append(schedule::tile_instruction(cx.function, made));
            if (made.op == Op::extent) same.with_symbol("of", ref_name(cx, made.operands[0]));
            return cx.hold(made.result(), cx.result_of(same, "", cx.scalar_layout(),
                                                       cx.type(made.result()).dtype));
        }
        case Op::load:
            if (cx.plan.loads.repeated.count(made.result()) != 0) return;  // lowered at its uses
            return lower_load(cx, made);
        case Op::store:
            return lower_store(cx, made);
        case Op::atomic_add:
        case Op::atomic_max:
        case Op::atomic_min:
        case Op::atomic_xchg:
        case Op::atomic_cas:
            return lower_atomic(cx, made);
        case Op::reshape:
            return lower_reshape(cx, made);
        case Op::slice:
            return lower_slice(cx, made);
        case Op::concatenate:
            return lower_concatenate(cx, made);
        case Op::reduce:
            return lower_reduce(cx, made);
        case Op::scan:
            return lower_scan(cx, made);
        case Op::associative_scan:
            return lower_associative_scan(cx, made);
        case Op::sort:
        case Op::argsort:
            return lower_sort(cx, made);
        case Op::dot:
            return lower_dot(cx, made);
        case Op::debug_print:
            return lower_print(cx, made);
        case Op::debug_check:
            return;
        case Op::for_loop:
            return lower_for(cx, made);
        case Op::while_loop:
            return lower_while(cx, made);
        case Op::if_else:
            return lower_branch(cx, made);
        case Op::call:
            user_error(cx.function.name, "expected mods to be inlined but got {}",
                       ir::describe(cx.function, made));
        default:
            break;
    }
    const Layout layout = cx.home(made.result());
    cx.hold(made.result(), lower_elementwise(cx, made, layout));
}

}  // namespace

void lower_block(Lowering& cx, const ir::Block& block) {
    const ir::Block* const outer = cx.block;
    const std::string outer_buffers_for = cx.buffers_for;
    for (const Instruction& instruction : block.body) {
        cx.begin_operation(name(instruction.op));
        if (instruction.op == Op::yield) break;
        cx.block = &block;
        // Reductions may stay pending across pure operations, not across effects or blocks.
        const bool pure = instruction.op == Op::reduce || instruction.op == Op::load ||
                          ir::is_elementwise(instruction.op) || cx.facts.is_lazy(instruction);
        if (!pure || cx.plan.staged.contains(instruction)) read_warp_parts(cx);
        cx.buffers_for = fmt::format("`{}`", name(instruction.op));
        lower_operation(cx, instruction);
    }
    read_warp_parts(cx);
    cx.block = outer;
    cx.buffers_for = outer_buffers_for;
}

Held lower_elementwise(Lowering& cx, const Instruction& made, const Layout& layout) {
    const Value result = made.result();
    const DType out = cx.type(result).dtype;
    schedule::Instruction same = schedule::tile_instruction(cx.function, made);
    for (Value operand : made.operands) {
        same.operands.push_back(cx.type(operand).is_scalar() ? scalar_of(cx, operand)
                                                             : value_in(cx, operand, layout));
    }
    if (out == DType::f32 && made.op == Op::cast &&
        schedule::combined_dtype(cx.type(made.operands[0]).dtype) == DType::f32) {
        return cx.result_of(cx.append(std::move(same)), "", layout, out);  // needs no variable
    }
    const bool again = cx.facts.is_lazy(made) || cx.forgotten.count(result) != 0;
    if (again) comment(cx, made);
    const std::string name =
        again ? cx.fresh(fmt::format("v{}x", result.id).c_str()) : fmt::format("v{}", result.id);
    return cx.result_of(cx.append(std::move(same)), name, layout, out);
}

}  // namespace tilewright::cuda
