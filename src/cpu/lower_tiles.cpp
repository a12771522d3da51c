// Lowers elementwise, shape and reducing ops.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "cpu/lower.h"
#include "cpu/picks.h"
#include "ir/evaluate.h"
#include "support/check.h"

namespace tilewright::cpu {

using ir::Op;
using ir::Value;

namespace {

/// True when elements are contiguous in row-major order.
bool is_dense(const Tile& tile) {
    if (tile.home == Home::view || tile.lane_axis >= 0) return false;
    std::int64_t expected = 1;
    for (int axis = tile.shape.rank() - 1; axis >= 0; --axis) {
        if (tile.shape[axis] == 1) continue;
        if (tile.stride[axis] != expected) return false;
        expected *= tile.shape[axis];
    }
    return true;
}

bool is_splat(const Tile& tile) {
    return tile.home == Home::slot;
}

}  // namespace

Tile with_axes(const Tile& tile, const ir::Shape& shape, std::span<const int> from) {
    Tile result = tile;
    result.shape = shape;
    result.lane_axis = -1;
    for (std::size_t axis = 0; axis < from.size(); ++axis) {
        const bool kept = from[axis] >= 0;
        const std::size_t old = kept ? static_cast<std::size_t>(from[axis]) : 0;
        result.stride[axis] = kept ? tile.stride[old] : 0;
        result.view_axis[axis] = kept ? tile.view_axis[old] : -1;
        if (kept && from[axis] == tile.lane_axis) result.lane_axis = static_cast<int>(axis);
    }
    return result;
}

void set_dense(Tile& tile, const ir::Shape& shape) {
    tile.shape = shape;
    tile.lane_axis = -1;
    tile.view_axis.fill(-1);
    std::int64_t stride = 1;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
        tile.stride[axis] = stride;
        stride *= shape[axis];
    }
}

std::optional<StripSource> as_source(const Tile& tile, const Space& space) {
    StripSource result;
    result.home = tile.home;
    result.index = tile.index;
    result.dtype = tile.dtype;
    result.offset = tile.offset;
    if (is_splat(tile)) return result;
    const auto stride = [&](int axis) { return tile.shape[axis] == 1 ? 0 : tile.stride[axis]; };
    const int lane = space.lane_axis;
    if (tile.home == Home::view) {
        // At run time the lanes are known to be contiguous only along this axis.
        if (tile.unit_axis < 0 || space.shape.rank() == 0) return std::nullopt;
        const int walked = tile.view_axis[lane];
        if (space.lanes() > 1 && walked >= 0) {
            if (walked != tile.unit_axis) return std::nullopt;
            result.view_lane_axis = walked;
            result.lane_stride = 1;
            result.panel_stride = space.width;
        }
        for (int axis = 0; axis < space.shape.rank(); ++axis) {
            if (axis == lane || space.shape[axis] == 1) continue;
            if (space.rows() != space.shape[axis]) return std::nullopt;
            result.view_row_axis = tile.view_axis[axis];
        }
        return result;
    }
    if (space.lanes() > 1 && space.shape.rank() > 0) {
        if (tile.lane_axis == lane) {
            if (tile.width != space.width && space.lanes() > std::min(tile.width, space.width)) {
                return std::nullopt;
            }
            result.lane_stride = 1;
            result.panel_stride = tile.panel_stride;
        } else if (stride(lane) == 1) {
            result.lane_stride = 1;
            result.panel_stride = space.width;
        } else if (stride(lane) != 0) {
            return std::nullopt;
        }
    }
    // The row axes must walk through memory with one stride.
    std::int64_t rows = 1;
    for (int axis = space.shape.rank() - 1; axis >= 0; --axis) {
        if (axis == lane || space.shape[axis] == 1) continue;
        if (axis == tile.lane_axis && tile.shape[axis] > tile.width) return std::nullopt;
        if (rows == 1) {
            result.row_stride = stride(axis);
        } else if (stride(axis) != result.row_stride * rows) {
            return std::nullopt;
        }
        rows *= space.shape[axis];
    }
    return result;
}

// ---- Operands.

Space Lowering::space_of(Value value) const {
    const ir::Shape& shape = function_.type(value).shape;
    if (is_vector(shape)) return {shape, long_axis(shape), kStripElements};
    return {shape, lanes_[value.id].axis, lanes_[value.id].width};
}

StripSource Lowering::source(Value value, const Space& space) {
    return source(tile(value), place(value).depth, space);
}

StripSource Lowering::source(const Tile& operand, int at_depth, const Space& space) {
    if (const auto direct = as_source(operand, space)) return *direct;
    return *as_source(in_layout(operand, at_depth, {space.lane_axis, space.width}), space);
}

/// A copy of `tile` in another layout, made where the value is defined so that loops do not repeat
/// it.
Tile Lowering::in_layout(const Tile& from, int at_depth, LaneChoice choice) {
    Move move;
    move.box = from.shape;
    move.in = from;
    move.out = new_tile(from.dtype, from.shape, choice);
    const Tile result = move.out;
    emit_at(at_depth, move);
    return result;
}

Tile Lowering::converted(const Tile& from, int at_depth, DType dtype) {
    if (from.dtype == dtype) return from;
    if (is_splat(from)) {
        ScalarOp cast;
        cast.op = Op::cast;
        cast.dtype = from.dtype;
        cast.function = kernels().elementwise(Op::cast, from.dtype, dtype, false);
        cast.in[0] = from.index;
        cast.num_inputs = 1;
        cast.out = new_slot();
        emit_at(at_depth, cast);
        return scalar_tile(cast.out, dtype, from.shape);
    }
    StripOp op;
    op.op = Op::cast;
    op.function = kernels().elementwise(Op::cast, from.dtype, dtype, false);
    op.num_inputs = 1;
    const int lane = from.lane_axis >= 0 ? from.lane_axis : long_axis(from.shape);
    const Space space{from.shape, std::max(lane, 0),
                      from.lane_axis >= 0 ? from.width : kPanelLanes};
    op.in[0] = source(from, at_depth, space);
    const Tile result = new_tile(dtype, from.shape, {space.lane_axis, space.width});
    op.out = *as_source(result, space);
    emit_chain(space, op, at_depth);
    return result;
}

void Lowering::emit_chain(const Space& space, StripOp op, int at_depth) {
    op.line = line_;
    op.padded = op.out.home == Home::buffer;
    for (const StripSource& in : op.in) op.padded = op.padded && in.home != Home::view;
    Chain chain;
    chain.rows = space.rows();
    chain.lanes = space.lanes();
    chain.width = space.width;
    chain.strip_rows = chain.rows;
    if (op.scans()) {
        const auto order = op.immediate[0] != 0 ? Chain::Order::backward : Chain::Order::forward;
        (op.kind == StripOp::Kind::scan_rows ? chain.row_order : chain.lane_order) = order;
    }
    chain.ops.push_back(std::move(op));
    emit_at(at_depth, std::move(chain));
}

// ---- Sources.

void Lowering::lower_constant(const ir::Instruction& instruction) {
    const ir::Type& type = function_.type(instruction.result());
    const std::uint64_t element =
        element_bits(type.dtype, instruction.get<ir::ConstantAttributes>().bits);
    set_place(instruction.result(),
              scalar_tile(constant_slot(type.dtype, element), type.dtype, type.shape));
}

void Lowering::lower_iota(const ir::Instruction& instruction) {
    const ir::Type& type = function_.type(instruction.result());
    const int axis = instruction.get<ir::AxisAttributes>().axis;
    // 0, 1, 2, ... are stored once among the program's constants and broadcast along other axes.
    const std::int64_t extent = type.shape[axis];
    const int element = size_of(type.dtype);
    const std::size_t start = (program_.constants.size() + 63) / 64 * 64;
    program_.constants.resize(start + static_cast<std::size_t>(extent * element) + 64);
    // That of the scalar table, which runs also where the program is compiled for another machine.
    const StripFunction cast =
        find_kernels("scalar")->elementwise(Op::cast, DType::i64, type.dtype, false);
    for (std::int64_t i = 0; i < extent; ++i) {
        std::byte* out = program_.constants.data() + start + i * element;
        if (!cast) {
            std::memcpy(out, &i, element);
            continue;
        }
        Strip strip;
        strip.rows = strip.lanes = 1;
        strip.in[0] = {&i, 0, 0};
        strip.out = out;
        cast(strip);
    }
    Tile result;
    result.home = Home::constant;
    result.index = static_cast<std::uint32_t>(start);
    program_.iotas.insert(result.index);
    result.dtype = type.dtype;
    result.shape = type.shape;
    result.stride[axis] = extent == 1 ? 0 : 1;
    set_place(instruction.result(), result);
}

// ---- Elementwise.

void Lowering::lower_elementwise(const ir::Instruction& instruction) {
    const Value result = instruction.result();
    const Space space = space_of(result);
    const DType in = function_.type(instruction.operands.back()).dtype;
    const DType out = function_.type(result).dtype;
    const auto* math = std::get_if<ir::MathAttributes>(&instruction.attributes);
    if (rounds_for_dots(instruction)) {
        // The dots that read it round as they form pairs.
        return set_place(result, tile(instruction.operands[0]));
    }
    if (scales_accumulator(instruction)) return;
    StripOp op;
    op.op = instruction.op;
    op.function = kernels().elementwise(instruction.op, in, out, math && math->approx);
    if (!op.function) {
        user_error(ir::name(instruction.op), "expected types the CPU can compute but got {} -> {}",
                   name(in), name(out));
    }
    for (const Value operand : instruction.operands) {
        op.in[op.num_inputs++] = source(operand, space);
    }
    op.out = *as_source(new_result(result), space);
    emit_chain(space, op, depth());
}

// ---- Shape.

void Lowering::lower_shape(const ir::Instruction& instruction) {
    const Value operand = instruction.operands[0];
    const Tile from = tile(operand);
    const ir::Shape& shape = function_.type(instruction.result()).shape;
    const int rank = shape.rank();
    std::vector<int> axes(rank);
    std::iota(axes.begin(), axes.end(), 0);
    if (is_splat(from)) {
        Tile result = from;
        result.shape = shape;
        return set_place(instruction.result(), result);
    }
    switch (instruction.op) {
        case Op::broadcast:
            for (int axis = 0; axis < rank; ++axis) {
                const bool same = from.shape.rank() == rank && from.shape[axis] == shape[axis];
                if (!same) axes[axis] = -1;
            }
            break;
        case Op::expand_dims: {
            const int at = instruction.get<ir::AxisAttributes>().axis;
            for (int axis = 0; axis < rank; ++axis) {
                axes[axis] = axis == at ? -1 : axis - (axis > at);
            }
            break;
        }
        case Op::transpose:
            axes = instruction.get<ir::PermutationAttributes>().permutation;
            break;
        case Op::slice: {
            const auto& slice = instruction.get<ir::SliceAttributes>();
            if (from.home == Home::view && reads_strips(instruction.result()))
                return lower_part(instruction);
            // Lanes in one panel are contiguous.
            const bool keeps_lanes =
                from.lane_axis < 0 || shape[from.lane_axis] == from.shape[from.lane_axis] ||
                (from.shape[from.lane_axis] <= from.width && slice.strides[from.lane_axis] == 1);
            if (!keeps_lanes || from.home == Home::view) {
                Move move;
                move.box = shape;
                move.in = from;
                for (std::size_t axis = 0; axis < static_cast<std::size_t>(rank); ++axis) {
                    move.in_start[axis] = slice.starts[axis];
                    move.in_step[axis] = slice.strides[axis];
                }
                move.out = new_result(instruction.result());
                return emit(move);
            }
            Tile result = from;
            result.shape = shape;
            for (std::size_t axis = 0; axis < static_cast<std::size_t>(rank); ++axis) {
                if (static_cast<int>(axis) == from.lane_axis) {
                    result.offset += slice.starts[axis];
                    continue;
                }
                result.offset += slice.starts[axis] * from.stride[axis];
                result.stride[axis] *= slice.strides[axis];
            }
            return set_place(instruction.result(), result);
        }
        default:
            TW_ASSERT(false, "{} is no shape op", ir::name(instruction.op));
    }
    set_place(instruction.result(), with_axes(from, shape, axes));
}

/// True when only strips read a value: dots have stricter needs of a view.
bool Lowering::reads_strips(Value value) const {
    const auto& users = users_[value.id];
    return std::all_of(users.begin(), users.end(), [](const ir::Instruction* user) {
        return ir::is_elementwise(user->op) || user->op == Op::slice || user->op == Op::reduce ||
               user->op == Op::scan || user->op == Op::associative_scan || user->op == Op::store;
    });
}

/// A slice of a view is a view, too.
void Lowering::lower_part(const ir::Instruction& instruction) {
    const auto& slice = instruction.get<ir::SliceAttributes>();
    Tile result = tile(instruction.operands[0]);
    result.shape = function_.type(instruction.result()).shape;
    SubView part;
    part.from = result.index;
    part.view = program_.num_views++;
    part.element = size_of(result.dtype);
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(result.shape.rank()); ++axis) {
        const int walked = result.view_axis[axis];
        if (walked < 0) continue;
        part.start[walked] = slice.starts[axis];
        part.step[walked] = slice.strides[axis];
        if (walked == result.unit_axis && slice.strides[axis] != 1) result.unit_axis = -1;
    }
    result.index = part.view;
    SubView whole = part;
    if (const auto outer = program_.parts.find(part.from); outer != program_.parts.end()) {
        whole.from = outer->second.from;
        for (std::size_t axis = 0; axis < part.start.size(); ++axis) {
            whole.start[axis] =
                outer->second.start[axis] + part.start[axis] * outer->second.step[axis];
            whole.step[axis] *= outer->second.step[axis];
        }
    }
    program_.parts[part.view] = whole;
    emit(part);
    set_place(instruction.result(), result);
}

void Lowering::lower_reshape(const ir::Instruction& instruction) {
    const Value operand = instruction.operands[0];
    const Value result = instruction.result();
    const ir::Shape& shape = function_.type(result).shape;
    Tile from = tile(operand);
    if (is_splat(from)) {
        from.shape = shape;
        return set_place(result, from);
    }
    if (shape.rank() == 0) {
        const Tile out = new_result(result);
        Move move;
        move.box = from.shape;
        move.in = from;
        move.out = out;
        move.out.shape = from.shape;
        return emit(move);
    }
    // Axes of extent 1 may be added and removed; anything else goes through row-major order.
    std::vector<int> long_from, long_to;
    for (int axis = 0; axis < from.shape.rank(); ++axis) {
        if (from.shape[axis] != 1) long_from.push_back(axis);
    }
    std::vector<int> axes(shape.rank(), -1);
    for (int axis = 0; axis < shape.rank(); ++axis) {
        if (shape[axis] != 1) long_to.push_back(axis);
    }
    bool same = long_from.size() == long_to.size();
    for (std::size_t i = 0; same && i < long_from.size(); ++i) {
        same = from.shape[long_from[i]] == shape[long_to[i]];
        axes[long_to[i]] = long_from[i];
    }
    if (same) return set_place(result, with_axes(from, shape, axes));
    if (!is_dense(from)) {
        Tile dense = new_tile(from.dtype, {from.shape.size()}, {});
        set_dense(dense, from.shape);
        copy(from, dense);
        from = dense;
    }
    set_dense(from, shape);
    set_place(result, from);
}

void Lowering::lower_concatenate(const ir::Instruction& instruction) {
    const Tile out = new_result(instruction.result());
    const int axis = instruction.get<ir::AxisAttributes>().axis;
    std::int64_t start = 0;
    for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
        Move move;
        move.in = tile(instruction.operands[i]);
        move.out = out;
        move.box = move.in.shape;
        move.out_start[axis] = start;
        move.whole = i == 0;
        start += move.box[axis];
        emit(move);
    }
}

// ---- Across lanes.

void Lowering::lower_reduce(const ir::Instruction& instruction) {
    const auto& attributes = instruction.get<ir::ReduceAttributes>();
    const Value operand = instruction.operands[0];
    const Value result = instruction.result();
    const DType dtype = function_.type(operand).dtype;
    const int axis = attributes.axis;
    if (attributes.kind == ir::Reduction::argmax || attributes.kind == ir::Reduction::argmin) {
        ArgReduce reduce{attributes.kind, axis, tile(operand), new_result(result)};
        return emit(reduce);
    }
    if (lower_pick(instruction)) return;
    const Space space = space_of(operand);
    const ir::Shape& shape = space.shape;
    const StripSource in = source(operand, space);
    // The kernels carry narrow floats in f32; they are rounded once, at the end.
    const DType carrier = is_float(dtype) && dtype != DType::f64 ? DType::f32 : dtype;
    const std::uint64_t identity = element_bits(carrier, ir::identity(attributes.kind, carrier));
    const bool over_lanes = axis == space.lane_axis;
    const StripFunction function = over_lanes ? kernels().reduce_lanes(attributes.kind, dtype)
                                              : kernels().reduce_rows(attributes.kind, dtype);
    if (!function) {
        user_error("reduce", "expected a type the CPU can reduce but got {} of {}",
                   ir::name(attributes.kind), name(dtype));
    }
    StripOp op;
    op.op = Op::reduce;
    op.reduction = attributes.kind;
    op.function = function;
    op.in[0] = in;
    op.num_inputs = 1;
    op.identity = identity;
    const ir::Shape& out_shape = function_.type(result).shape;
    const int lane = space.lane_axis - (space.lane_axis > axis);
    Tile out;
    if (out_shape.rank() == 0) {
        out = scalar_tile(new_slot(), carrier);
    } else if (over_lanes) {
        // One element per row: row-major order of the remaining axes.
        out = new_tile(carrier, {space.rows()}, {});
        set_dense(out, out_shape);
    } else {
        // The lanes stay; the rows are the axes around the reduced one.
        out = new_tile(carrier, out_shape, {lane, space.width});
    }
    if (over_lanes) {
        op.kind = StripOp::Kind::reduce_lanes;
        op.out = {out.home, out.index, carrier, 0, 0, 1, 0, -1};
        emit_chain(space, op, depth());
        return set_place(result, converted(out, depth(), dtype));
    }
    const StripSource to = *as_source(out, {out_shape, std::max(lane, 0), space.width});
    std::int64_t outer = 1, inner = 1;
    for (int a = 0; a < shape.rank(); ++a) {
        if (a == space.lane_axis) continue;
        if (a < axis) outer *= shape[a];
        if (a > axis) inner *= shape[a];
    }
    if (outer == 1 && inner == 1) {
        op.kind = StripOp::Kind::reduce_rows;
        op.out = to;
        emit_chain(space, op, depth());
    } else {
        ReduceRows reduce;
        reduce.reduction = attributes.kind;
        reduce.function = function;
        reduce.in = in;
        reduce.out = to;
        reduce.outer = outer;
        reduce.extent = shape[axis];
        reduce.inner = inner;
        reduce.lanes = space.lanes();
        reduce.width = space.width;
        reduce.identity = identity;
        emit(reduce);
    }
    set_place(result, converted(out, depth(), dtype));
}

bool Lowering::lower_pick(const ir::Instruction& instruction) {
    const auto form = pick_form(function_, definitions_, instruction);
    if (!form || tile(form->value).home != Home::buffer) return false;
    const Tile& from = tile(form->value);
    std::vector<std::int64_t> dims;
    std::vector<int> axes = form->kept;
    axes.push_back(form->axis);
    for (const int axis : axes) dims.push_back(from.shape[axis]);
    Pick pick;
    pick.in = with_axes(from, ir::Shape(dims), axes);
    pick.at = tile(form->at).index;
    pick.dtype = function_.type(form->at).dtype;
    pick.out = new_result(instruction.result());
    emit(pick);
    return true;
}

}  // namespace tilewright::cpu
