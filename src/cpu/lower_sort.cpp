// Lowers sorting.
#include <algorithm>

#include "cpu/lower.h"

namespace tilewright::cpu {

using ir::Op;
using ir::Value;

namespace {

/// True when the elements of every line along the axis lie side by side.
bool is_in_lines(const Tile& tile, int axis) {
    const auto a = static_cast<std::size_t>(axis);
    switch (tile.home) {
        case Home::slot:
            return false;
        case Home::view:
            return tile.unit_axis >= 0 && tile.view_axis[a] == tile.unit_axis;
        default:
            return tile.lane_axis == axis ? tile.shape[axis] <= tile.width : tile.stride[a] == 1;
    }
}

bool is_in(const ir::Block& block, const ir::Instruction& instruction) {
    return std::any_of(block.body.begin(), block.body.end(),
                       [&](const ir::Instruction& each) { return &each == &instruction; });
}

}  // namespace

/// A tile whose lines along an axis lie side by side, one after the other.
Tile Lowering::new_lines(DType dtype, const ir::Shape& shape, int axis) {
    Tile result = new_tile(dtype, {shape.size()}, {});
    set_dense(result, shape);
    std::int64_t stride = shape[axis];
    for (int a = shape.rank() - 1; a >= 0; --a) {
        if (a == axis) continue;
        result.stride[a] = stride;
        stride *= shape[a];
    }
    result.stride[axis] = 1;
    return result;
}

/// sort and argsort; both at once where the block has both of one tile.
void Lowering::lower_sort(const ir::Instruction& instruction) {
    const Value operand = instruction.operands[0];
    if (place(instruction.result()).tile.home != Home::none) return;  // with the other one
    const auto& how = instruction.get<ir::SortAttributes>();
    const ir::Type& from = function_.type(operand);
    SortLines sort;
    sort.function = kernels().sort(from.dtype);
    sort.axis = how.axis;
    sort.descending = how.descending;
    sort.in = tile(operand);
    const std::int64_t length = from.shape[how.axis];
    if (!is_in_lines(sort.in, how.axis)) {
        Move move;
        move.box = from.shape;
        move.in = sort.in;
        move.out = new_lines(from.dtype, from.shape, how.axis);
        sort.in = move.out;
        emit(move);
    }
    sort.work = new_tile(DType::i64, {sort_work(length) / 8}, {});
    for (const ir::Instruction* user : users_[operand.id]) {
        if (user->op != Op::sort && user->op != Op::argsort) continue;
        if (user->get<ir::SortAttributes>() != how || !is_in(*block_, *user)) continue;
        const ir::Type& to = function_.type(user->result());
        Tile& out = user->op == Op::sort ? sort.out : sort.places;
        if (out.home != Home::none) continue;  // an equal one, which optimising merges
        out = new_lines(to.dtype, to.shape, how.axis);
        set_place(user->result(), out);
    }
    emit(sort);
}

}  // namespace tilewright::cpu
