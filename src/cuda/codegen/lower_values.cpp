// Elements are found, written in the layout that is wanted, or converted.
#include "cuda/codegen/lower_values.h"

#include "cuda/codegen/lower_lanes.h"
#include "cuda/codegen/lower_memory.h"
#include "cuda/codegen/lower_operations.h"
#include "cuda/codegen/lower_shared.h"
#include "cuda/schedule/register_names.h"
#include "support/check.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

/// A view of a value in a layout, from which no element moves.
Held view_of(Lowering& cx, const Instruction& made, const Layout& layout) {
    const Value source = made.operands[0];
    const ir::Shape& from = cx.type(source).shape;
    schedule::Instruction same = schedule::tile_instruction(cx.function, made);
    if (from.rank() == 0) {
        same.operands = {scalar_of(cx, source)};
    } else {
        const auto other = schedule::layout_of_source(same, from, layout);
        TW_ASSERT(other.has_value());
        same.operands = {value_in(cx, source, *other)};
    }
    return cx.result_of(cx.append(std::move(same)), "", layout, cx.type(source).dtype);
}

Held without_operands(Lowering& cx, const Instruction& made, const Layout& layout) {
    return cx.result_of(cx.append(schedule::tile_instruction(cx.function, made)), "", layout,
                        cx.type(made.result()).dtype);
}

}  // namespace

schedule::Value scalar_of(Lowering& cx, Value value) {
    return value_in(cx, value, cx.scalar_layout());
}

schedule::Value index_of(Lowering& cx, Value value) {
    const schedule::Value scalar = scalar_of(cx, value);
    if (cx.type(value).dtype == DType::i64) return scalar;
    schedule::Instruction& wide = cx.append(schedule::make(schedule::Op::index, {scalar}));
    return cx.result_of(wide, "", cx.scalar_layout(), DType::i64).value;
}

Held held_anywhere(Lowering& cx, Value value) {
    const Held* const known = cx.find(value);
    const Layout layout = known != nullptr ? known->layout : cx.home(value);
    return {layout, value_in(cx, value, layout)};
}

schedule::Value value_in(Lowering& cx, Value value, const Layout& layout) {
    TW_ASSERT(layout.shape == cx.type(value).shape, "{} wanted as {}", layout.shape.rank(),
              cx.type(value).shape.rank());
    if (const Held* held = cx.find(value, layout)) return held->value;
    const Instruction* made = cx.facts.definition(value);
    if (made != nullptr && made->op == Op::reduce && !cx.unread.empty()) {
        read_warp_parts(cx);
        return value_in(cx, value, layout);
    }
    if (cx.plan.loads.repeated.count(value) != 0 && cx.find(value) == nullptr) {
        lower_load(cx, *made);
        return value_in(cx, value, layout);
    }
    if (made != nullptr && made->op == Op::constant) {
        return without_operands(cx, *made, layout).value;
    }
    const bool again = cx.forgotten.count(value) != 0 && cx.plan.loads.repeated.count(value) == 0;
    Held found;
    if (made != nullptr && (cx.facts.is_lazy(*made) || again)) {
        found = made->op == Op::iota    ? without_operands(cx, *made, layout)
                : ir::is_view(made->op) ? view_of(cx, *made, layout)
                                        : lower_elementwise(cx, *made, layout);
    } else {
        const Held* held = cx.find(value);
        TW_ASSERT(held != nullptr, "value {} has no elements yet", value.id);
        found = convert(cx, *held, layout, cx.type(value).dtype);
    }
    const schedule::Value result = found.value;
    cx.hold(value, std::move(found));
    return result;
}

Held convert(Lowering& cx, const Held& from, const Layout& to, DType dtype) {
    const Conversion plan = conversion(from.layout, to);
    const bool relabels = plan.kind == Conversion::Kind::relabel;
    if (relabels || (plan.kind == Conversion::Kind::shuffle && to.registers() <= 64)) {
        schedule::Instruction& made =
            cx.append(relabels ? schedule::Op::relabel : schedule::Op::shuffle);
        made.operands = {from.value};
        return cx.result_of(made, relabels ? "" : cx.fresh("s"), to,
                            cx.program.type(from.value).type.dtype);
    }
    cx.comment("through shared memory from {} to {}", from.layout.to_string(), to.to_string());
    const std::int64_t pitch = row_pitch(from.layout, to, size_of(dtype));
    const int rank = to.shape.rank();
    const std::int64_t rows = covered_rows(to.shape);
    const int bytes = size_of(dtype);
    const auto in_rows = [&](const Layout& layout) {
        return TilePlace{pitch, {}, {}, {}, vector_in_rows(layout, pitch, bytes)};
    };
    return through_shared(cx, {from}, in_rows(from.layout), to, in_rows(to),
                          rank == 0 ? 1 : rows * pitch, dtype);
}

}  // namespace tilewright::cuda
