// Blocks, instructions and elementwise operations.
#include <algorithm>
#include <cctype>

#include "cuda/codegen/emitter.h"
#include "ir/print.h"
#include "support/check.h"

namespace tilewright::cuda {

using ir::Op;

void Emitter::comment(const Instruction& made) {
    // describe() numbers values from 0, operands before results; the text names them by handle.
    std::vector<Value> order;
    for (const auto* values : {&made.operands, &made.results}) {
        for (Value value : *values) {
            const bool named = !f_.value_name(value).empty();
            if (!named && std::find(order.begin(), order.end(), value) == order.end()) {
                order.push_back(value);
            }
        }
    }
    const std::string text = ir::describe(f_, made);
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
    const bool marked = target_.mark_lines && made.location.line > 0;
    line("// {}{}", marked ? fmt::format("@{} ", made.location.line) : "", renamed);
}

void Emitter::block(const ir::Block& block) {
    const ir::Block* const outer = block_;
    const std::string outer_buffers_for = buffers_for_;
    for (const Instruction& instruction : block.body) {
        begin_operation(name(instruction.op));
        if (instruction.op == Op::yield) break;
        block_ = &block;
        // Reductions may stay pending across pure operations, not across effects or blocks.
        const bool pure = instruction.op == Op::reduce || instruction.op == Op::load ||
                          ir::is_elementwise(instruction.op) || facts_.is_lazy(instruction);
        if (!pure || plan_.staged.contains(instruction)) read_warp_parts();
        buffers_for_ = fmt::format("`{}`", name(instruction.op));
        this->instruction(instruction);
    }
    read_warp_parts();
    block_ = outer;
    buffers_for_ = outer_buffers_for;
}

void Emitter::instruction(const Instruction& made) {
    if (facts_.is_lazy(made)) return;
    const bool with_blocks = !made.blocks.empty();
    if (!with_blocks && made.op != Op::debug_check) {
        comment(made);
    }
    switch (made.op) {
        case Op::program_id:
            hold(made.result(), scalar_layout(),
                 {fmt::format("program{}", made.get<ir::AxisAttributes>().axis)});
            return;
        case Op::num_programs: {
            const int axis = made.get<ir::AxisAttributes>().axis;
            const std::int64_t extent = f_.grid[axis];
            hold(
                made.result(), scalar_layout(),
                {extent == ir::kDynamic ? fmt::format("grid{}", axis)
                                        : literal(DType::i64, static_cast<std::uint64_t>(extent))});
            return;
        }
        case Op::extent:
            hold(made.result(), scalar_layout(),
                 {extent_text(made.operands[0], made.get<ir::AxisAttributes>().axis)});
            return;
        case Op::load:
            if (plan_.loads.repeated.count(made.result()) != 0) return;  // emitted at its uses
            return load(made);
        case Op::store:
            return store(made);
        case Op::atomic_add:
        case Op::atomic_max:
        case Op::atomic_min:
        case Op::atomic_xchg:
        case Op::atomic_cas:
            return atomic(made);
        case Op::reshape:
            return reshape(made);
        case Op::slice:
            return slice(made);
        case Op::concatenate:
            return concatenate(made);
        case Op::reduce:
            return reduce(made);
        case Op::scan:
            return scan(made);
        case Op::sort:
        case Op::argsort:
            return sort(made);
        case Op::dot:
            return dot(made);
        case Op::debug_print:
            return debug_print(made);
        case Op::debug_check:
            return;
        case Op::for_loop:
            return for_loop(made);
        case Op::while_loop:
            return while_loop(made);
        case Op::if_else:
            return if_else(made);
        case Op::call:
            user_error(f_.name, "expected mods to be inlined but got {}", ir::describe(f_, made));
        default:
            break;
    }
    const Layout layout = home(made.result());
    hold(made.result(), layout, elementwise(made, layout, made.result()));
}

Names Emitter::elementwise(const Instruction& made, const Layout& layout, Value result) {
    const DType out = type(result).dtype;
    if (made.op == Op::cast && register_type(out) == "f32" &&
        register_type(type(made.operands[0]).dtype) == "f32" && out == DType::f32) {
        return get(made.operands[0], layout);
    }
    std::vector<Names> operands;
    for (Value operand : made.operands) {
        const ir::Type& operand_type = type(operand);
        if (operand_type.is_scalar() && layout.shape.rank() != 0) {
            operands.push_back(
                Names(static_cast<std::size_t>(layout.registers()), scalar(operand)));
        } else {
            operands.push_back(get(operand, layout));
        }
    }
    const bool again = facts_.is_lazy(made) || forgotten_.count(result) != 0;
    if (again) comment(made);
    const std::string base =
        again ? fresh(fmt::format("v{}x", result.id).c_str()) : fmt::format("v{}", result.id);
    const Names names = numbered(base, layout.registers());
    const bool computed_narrow = is_rounded(made.op, out);
    // Registers with equal operands (broadcasts) share one name.
    std::map<std::string, std::string> seen;
    Names result_names;
    for (std::size_t r = 0; r < names.size(); ++r) {
        Names elements;
        for (const Names& operand : operands) elements.push_back(operand[r]);
        std::string text = elementwise_text(made, elements);
        if (computed_narrow) text = fmt::format("rounded({}{{}}, {})", storage_type(out), text);
        const auto [entry, inserted] = seen.try_emplace(text, names[r]);
        if (inserted) line("const {} {} = {};", register_type(out), names[r], text);
        result_names.push_back(entry->second);
    }
    return result_names;
}

std::string Emitter::elementwise_text(const Instruction& made, const Names& x) const {
    const DType in = type(made.operands[made.op == Op::select ? 1 : 0]).dtype;
    const auto* math = std::get_if<ir::MathAttributes>(&made.attributes);
    return cuda::element_text(made.op, math != nullptr && math->approx, in,
                              type(made.result()).dtype, x);
}

}  // namespace tilewright::cuda
