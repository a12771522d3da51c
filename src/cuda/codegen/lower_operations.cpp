// Blocks, instructions and elementwise operations.
#include "cuda/codegen/lower_operations.h"

#include <algorithm>
#include <cctype>

#include "cuda/codegen/lower_dots.h"
#include "cuda/codegen/lower_lanes.h"
#include "cuda/codegen/lower_loops.h"
#include "cuda/codegen/lower_memory.h"
#include "cuda/codegen/lower_shared.h"
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
    cx.line("// {}{}", marked ? fmt::format("@{} ", made.location.line) : "", renamed);
}

void lower_operation(Lowering& cx, const Instruction& made) {
    if (cx.facts.is_lazy(made)) return;
    const bool with_blocks = !made.blocks.empty();
    if (!with_blocks && made.op != Op::debug_check) {
        comment(cx, made);
    }
    switch (made.op) {
        case Op::program_id:
            cx.hold(made.result(), cx.scalar_layout(),
                    {fmt::format("program{}", made.get<ir::AxisAttributes>().axis)});
            return;
        case Op::num_programs: {
            const int axis = made.get<ir::AxisAttributes>().axis;
            const std::int64_t extent = cx.function.grid[axis];
            cx.hold(
                made.result(), cx.scalar_layout(),
                {extent == ir::kDynamic ? fmt::format("grid{}", axis)
                                        : literal(DType::i64, static_cast<std::uint64_t>(extent))});
            return;
        }
        case Op::extent:
            cx.hold(made.result(), cx.scalar_layout(),
                    {extent_text(cx, made.operands[0], made.get<ir::AxisAttributes>().axis)});
            return;
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
    cx.hold(made.result(), layout, lower_elementwise(cx, made, layout, made.result()));
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

Names lower_elementwise(Lowering& cx, const Instruction& made, const Layout& layout, Value result) {
    const DType out = cx.type(result).dtype;
    if (made.op == Op::cast && register_type(out) == "f32" &&
        register_type(cx.type(made.operands[0]).dtype) == "f32" && out == DType::f32) {
        return elements_of(cx, made.operands[0], layout);
    }
    std::vector<Names> operands;
    for (Value operand : made.operands) {
        const ir::Type& operand_type = cx.type(operand);
        if (operand_type.is_scalar() && layout.shape.rank() != 0) {
            operands.push_back(
                Names(static_cast<std::size_t>(layout.registers()), scalar_text(cx, operand)));
        } else {
            operands.push_back(elements_of(cx, operand, layout));
        }
    }
    const bool again = cx.facts.is_lazy(made) || cx.forgotten.count(result) != 0;
    if (again) comment(cx, made);
    const std::string base =
        again ? cx.fresh(fmt::format("v{}x", result.id).c_str()) : fmt::format("v{}", result.id);
    const Names names = numbered(base, layout.registers());
    const bool computed_narrow = is_rounded(made.op, out);
    // Registers with equal operands (broadcasts) share one name.
    std::map<std::string, std::string> seen;
    Names result_names;
    for (std::size_t r = 0; r < names.size(); ++r) {
        Names elements;
        for (const Names& operand : operands) elements.push_back(operand[r]);
        std::string text = elementwise_text(cx, made, elements);
        if (computed_narrow) text = fmt::format("rounded({}{{}}, {})", storage_type(out), text);
        const auto [entry, inserted] = seen.try_emplace(text, names[r]);
        if (inserted) cx.line("const {} {} = {};", register_type(out), names[r], text);
        result_names.push_back(entry->second);
    }
    return result_names;
}

std::string elementwise_text(const Lowering& cx, const Instruction& made, const Names& x) {
    const DType in = cx.type(made.operands[made.op == Op::select ? 1 : 0]).dtype;
    const auto* math = std::get_if<ir::MathAttributes>(&made.attributes);
    return cuda::element_text(made.op, math != nullptr && math->approx, in,
                              cx.type(made.result()).dtype, x);
}

}  // namespace tilewright::cuda
