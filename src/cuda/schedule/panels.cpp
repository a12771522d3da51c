// The cut of accumulators into panels.
#include "cuda/schedule/panels.h"

#include <utility>

#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {

PanelCut::PanelCut(Program& program) : p_(program), axis_(columns_axis(sums_of(program))) {}

void PanelCut::set(const ir::Shape& accumulators) {
    columns_ = accumulators[axis_];
    halves_ = accumulators[1 - axis_] / (kRows * p_.groups[1 - axis_]);
}

int PanelCut::column_axis(Value value) const {
    const ValueType& type = p_.type(value);
    if (!type.layout) return -1;
    const int rank = type.type.shape.rank();
    if (rank == 2) return type.type.shape[axis_] == columns_ ? axis_ : -1;
    return rank == 1 && type.layout->lane[0] != 0 ? 0 : -1;
}

int PanelCut::row_axis(Value value) const {
    const ValueType& type = p_.type(value);
    if (halves_ == 1 || !type.layout) return -1;
    const int rank = type.type.shape.rank();
    if (rank == 2) return type.type.shape[1 - axis_] != 1 ? 1 - axis_ : -1;
    return rank == 1 && column_axis(value) < 0 ? 0 : -1;
}

Value PanelCut::panel_value(Value value) const {
    ValueType type = p_.type(value);
    const int axis = column_axis(value);
    // As many rows of a warpgroup as columns.
    ir::Shape tile{kPanelColumns * p_.groups[0], kPanelColumns * p_.groups[1]};
    const Layout whole = sums_layout(p_, tile, p_.groups);
    const int row = row_axis(value);
    if (axis >= 0) type.type.shape[axis] = tile[axis_];
    if (row >= 0) type.type.shape[row] = tile[1 - axis_];
    type.layout = type.type.shape.rank() == 1 ? whole.without(axis >= 0 ? 1 - axis_ : axis_)
                                              : whole.narrowed(type.type.shape);
    return p_.add(std::move(type), p_.value_name(value));
}

PanelCut::Offsets PanelCut::offsets_of(Block& block, Value panel) const {
    std::optional<Value> rows;
    Value column = panel;
    if (halves_ > 1) {
        const Value halves = append_constant(p_, block, halves_);
        const Value height = append_constant(p_, block, kRows * p_.groups[0]);
        const Value half = append_scalar(p_, block, ir::Op::rem, {panel, halves});
        rows = append_scalar(p_, block, ir::Op::mul, {half, height});
        column = append_scalar(p_, block, ir::Op::div, {panel, halves});
    }
    const Value width = append_constant(p_, block, kPanelColumns);
    return {append_scalar(p_, block, ir::Op::mul, {column, width}), rows};
}

std::size_t accessed_dimension(const Instruction& access, int axis) {
    const std::vector<std::int64_t>& sizes = access.list("index");
    std::size_t dim = 0;
    for (; dim < sizes.size(); ++dim) {
        if (sizes[dim] != 0 && axis-- == 0) break;
    }
    return dim;
}

}  // namespace tilewright::cuda::schedule
