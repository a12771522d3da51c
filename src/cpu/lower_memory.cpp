// Lowers loads, stores and atomics.
#include <algorithm>

#include "cpu/lower.h"
#include "ir/passes/effects.h"
#include "support/check.h"

namespace tilewright::cpu {
namespace {

/// A tile that is a view of an array, whose axes are those of the view.
Tile tile_of_view(int view, DType dtype, const ir::Shape& shape, int unit_axis) {
    Tile tile;
    tile.home = Home::view;
    tile.index = view;
    tile.dtype = dtype;
    tile.shape = shape;
    tile.unit_axis = unit_axis;
    for (int axis = 0; axis < shape.rank(); ++axis) tile.view_axis[axis] = axis;
    return tile;
}

}  // namespace

using ir::Op;
using ir::Value;

Access Lowering::lower_access(const ir::Instruction& instruction, const ir::Shape& shape) {
    const auto& attributes = instruction.get<ir::AccessAttributes>();
    const Value ref = instruction.operands[0];
    Access access;
    access.ref = refs_.at(ref.id);
    access.dtype = function_.ref_type(ref).dtype;
    access.shape = shape;
    int joint_rank = 0;
    for (std::size_t i = 0; i < attributes.indices.size(); ++i) {
        if (attributes.indices[i].kind != ir::Index::Kind::tile) continue;
        joint_rank = std::max(joint_rank, function_.type(instruction.operands[i + 1]).shape.rank());
        access.gathers = true;
    }
    int axis = 0;
    int joint_start = -1;
    for (std::size_t i = 0; i < attributes.indices.size(); ++i) {
        const ir::Index& index = attributes.indices[i];
        const Value operand = instruction.operands[i + 1];
        AccessIndex out;
        out.kind = index.kind;
        out.stride = index.stride;
        switch (index.kind) {
            case ir::Index::Kind::scalar:
                out.slot = integer_slot(operand);
                break;
            case ir::Index::Kind::slice:
                out.slot = integer_slot(operand);
                out.axis = axis++;
                break;
            case ir::Index::Kind::tile:
                if (joint_start < 0) {
                    joint_start = axis;
                    axis += joint_rank;
                }
                out.tile = tile(operand);
                out.tile_axis = joint_start + joint_rank - out.tile.shape.rank();
                break;
        }
        access.indices.push_back(out);
    }
    return access;
}

Tile Lowering::mask_tile(Value mask, const ir::Shape& shape) {
    Tile result = tile(mask);
    if (result.shape.rank() == 0) result.shape = shape;
    return result;
}

/// A load is left in place when nothing stores to the array and its readers can work there: dots,
/// and strips whose lanes are along the array's rows.
bool Lowering::lower_view(const ir::Instruction& instruction) {
    const auto& attributes = instruction.get<ir::AccessAttributes>();
    const Value result = instruction.result();
    const ir::Type& type = function_.type(result);
    if (attributes.has_mask || type.is_scalar() || type.dtype == DType::boolean) return false;
    if (ir::may_write(function_, written_, instruction.operands[0])) return false;
    for (const ir::Index& index : attributes.indices) {
        if (index.kind == ir::Index::Kind::tile) return false;
    }
    const int contiguous = contiguous_axis(attributes, type.shape);
    const bool dots_only = feeds_only_dots(users_[result.id], result);
    LoadView load;
    load.unit_axis = contiguous;
    // Elements that kernels multiply in place: the broadcast operand may have any strides.
    if (dots_only && size_of(type.dtype) >= 4) {
        load.unit_axis = -1;
        for (const ir::Instruction* dot : users_[result.id]) {
            const ir::Shape& shape = function_.type(dot->result()).shape;
            const int lane = is_vector(shape) ? long_axis(shape) : lanes_[dot->result().id].axis;
            const DotRoles roles = dot_roles(function_, *dot, lane);
            if (roles.vector != result) continue;
            if (multiplies_rows(*dot)) load.unit_axis = contiguous;
            if (roles.vector_axis != contiguous) continue;
            load.unit_axis = contiguous;
            const bool many_rows = shape.size() / std::max<std::int64_t>(shape[lane], 1) >= 32;
            load.packs_far_rows = many_rows && !is_blocked(*dot);
        }
    } else if (!dots_only) {
        const int lane = is_vector(type.shape) ? long_axis(type.shape) : lanes_[result.id].axis;
        if (contiguous < 0 || lane != contiguous) return false;
    }
    for (const ir::Instruction* dot : users_[result.id]) {
        if (!dots_only) break;
        // Words need elements that are multiplied as they are: f8 in pairs is widened first.
        const int group = dot_form(function_, *dot).group;
        if (group * size_of(type.dtype) == 4) load.group = std::max(load.group, group);
    }
    load.access = lower_access(instruction, type.shape);
    if (attributes.has_other) {
        load.other = tile(instruction.operands[1 + attributes.indices.size()]);
        load.other.shape = type.shape;
    }
    load.copy = new_tile(type.dtype, type.shape, {std::max(load.unit_axis, 0), kPanelLanes});
    if (!load.packs_far_rows) set_dense(load.copy, type.shape);
    load.view = program_.num_views++;
    Tile view;
    view.home = Home::view;
    view.index = load.view;
    view.dtype = type.dtype;
    view.shape = type.shape;
    view.unit_axis = load.unit_axis;
    for (int axis = 0; axis < type.shape.rank(); ++axis) {
        view.view_axis[axis] = axis;
    }
    set_place(result, view);
    emit(std::move(load));
    return true;
}

void Lowering::lower_load(const ir::Instruction& instruction) {
    if (is_added_in_place(instruction)) return;
    if (lower_view(instruction)) return;
    const auto& attributes = instruction.get<ir::AccessAttributes>();
    const Value result = instruction.result();
    const ir::Type& type = function_.type(result);
    const std::size_t next = 1 + attributes.indices.size();
    Load load;
    load.access = lower_access(instruction, type.shape);
    load.transpose = kernels().transpose(type.dtype, type.dtype);
    if (attributes.has_other) {
        load.other = tile(instruction.operands[next + attributes.has_mask]);
        load.other.shape = type.shape;
    }
    if (!attributes.has_mask) {
        load.out = new_result(result);
        return emit(load);
    }
    // Elements of the array may be read whatever the mask is: the select discards them.
    Tile zero = scalar_tile(constant_slot(type.dtype, 0), type.dtype, type.shape);
    const Tile other = attributes.has_other ? load.other : zero;
    const Tile mask = mask_tile(instruction.operands[next], type.shape);
    const Space space = space_of(result);
    StripOp op;
    op.op = Op::select;
    op.function = kernels().elementwise(Op::select, type.dtype, type.dtype, false);
    op.num_inputs = 3;
    load.out = new_result(result);
    op.in[1] = *as_source(load.out, space);
    emit(std::move(load));
    op.in[0] = source(mask, depth(), space);
    op.in[2] = source(other, depth(), space);
    op.out = *as_source(new_result(result), space);
    emit_chain(space, op, depth());
}

void Lowering::lower_store(const ir::Instruction& instruction) {
    const auto& attributes = instruction.get<ir::AccessAttributes>();
    const std::size_t next = 1 + attributes.indices.size();
    Store store;
    store.value = tile(instruction.operands[next]);
    store.access = lower_access(instruction, store.value.shape);
    store.transpose = kernels().transpose(store.value.dtype, store.value.dtype);
    if (attributes.has_mask) {
        store.mask = mask_tile(instruction.operands[next + 1], store.value.shape);
    }
    if (const auto target = targets_.find(&instruction); target != targets_.end()) {
        // A dot has written to the view.
        store.view = store.value.index;
        store.value = target->second;
        return emit(store);
    }
    if (!lower_store_view(instruction, store)) emit(store);
}

/// The view to which a dot writes what `store` would store; the store then copies it where the
/// rectangle leaves the array.
Tile Lowering::lower_target(const ir::Instruction& store) {
    const auto& attributes = store.get<ir::AccessAttributes>();
    const ir::Instruction& dot = *maker_of(store.operands[1 + attributes.indices.size()]);
    const ir::Shape& shape = function_.type(dot.result()).shape;
    const int lane = shape.rank() - 1;
    StoreView view;
    view.unit_axis = lane;
    view.access = lower_access(store, shape);
    view.view = program_.num_views++;
    view.loads = dot.operands.size() > 2;
    view.copy = new_tile(view.access.dtype, shape, {lane, kPanelLanes});
    targets_[&store] = view.copy;
    const Tile to = tile_of_view(view.view, view.access.dtype, shape, lane);
    emit(std::move(view));
    return to;
}

/// The view to which a scan writes what `store` would store, and the store where that is a copy.
Tile Lowering::lower_scan_target(const ir::Instruction& store, const ir::Shape& shape, int lane) {
    StoreView view;
    view.unit_axis = lane;
    view.access = lower_access(store, shape);
    view.view = program_.num_views++;
    view.copy = new_tile(view.access.dtype, shape, {lane, kPanelLanes});
    set_dense(view.copy, shape);
    targets_[&store] = view.copy;
    const Tile to = tile_of_view(static_cast<int>(view.view), view.access.dtype, shape, lane);
    emit(std::move(view));
    return to;
}

/// A store whose lanes are along the array's rows becomes an op of a chain, which writes directly
/// to the array where it can.
bool Lowering::lower_store_view(const ir::Instruction& instruction, const Store& store) {
    const auto& attributes = instruction.get<ir::AccessAttributes>();
    const ir::Shape& shape = store.value.shape;
    if (store.access.gathers || shape.size() <= 1) return false;
    const Value value = instruction.operands[1 + attributes.indices.size()];
    const int contiguous = contiguous_axis(attributes, shape);
    Space space{shape, contiguous, kStripElements};
    if (is_vector(shape)) {
        if (long_axis(shape) != contiguous) return false;
    } else {
        space.width = store.value.home == Home::slot ? kPanelLanes : lanes_[value.id].width;
        if (contiguous < 0) return false;
        if (store.value.home != Home::slot && lanes_[value.id].axis != contiguous) return false;
    }
    StoreView view;
    view.unit_axis = contiguous;
    const Tile to = tile_of_view(program_.num_views, store.access.dtype, shape, contiguous);
    const auto out = as_source(to, space), in = as_source(store.value, space);
    if (!out || !in) return false;
    const bool masked = store.mask.home != Home::none;
    StripOp op;
    op.op = Op::store;
    op.function = kernels().store(to.dtype, masked);
    op.in[0] = *in;
    op.num_inputs = 1;
    op.out = *out;
    op.stored_ref = store.access.ref;
    Store rest = store;
    if (masked) {
        const auto mask = as_source(store.mask, space);
        if (!mask) return false;
        op.in[op.num_inputs++] = *mask;
    } else {
        op.stream = kernels().stream(to.dtype);
        view.copy = new_tile(to.dtype, shape, {contiguous, space.width});
        set_dense(view.copy, shape);
        rest.value = view.copy;
    }
    view.access = store.access;
    view.view = program_.num_views++;
    rest.view = view.view;
    emit(std::move(view));
    emit_chain(space, std::move(op), depth());
    emit(std::move(rest));
    return true;
}

void Lowering::lower_atomic(const ir::Instruction& instruction) {
    const auto& attributes = instruction.get<ir::AccessAttributes>();
    const std::size_t next = 1 + attributes.indices.size();
    const Value result = instruction.result();
    const bool cas = instruction.op == Op::atomic_cas;
    Atomic atomic;
    atomic.op = instruction.op;
    atomic.value = tile(instruction.operands[next]);
    atomic.access = lower_access(instruction, atomic.value.shape);
    if (cas) atomic.desired = tile(instruction.operands[next + 1]);
    if (attributes.has_mask) {
        atomic.mask = mask_tile(instruction.operands[next + 1 + cas], atomic.value.shape);
    }
    if (!users_[result.id].empty()) atomic.out = new_result(result);
    // Sums of floats depend on the order, and so do old values, exchanges and compare-and-swap.
    const bool commutes = instruction.op == Op::atomic_max || instruction.op == Op::atomic_min ||
                          (instruction.op == Op::atomic_add && !is_float(atomic.access.dtype));
    if (!commutes || !users_[result.id].empty()) program_.in_order = true;
    emit(atomic);
}

}  // namespace tilewright::cpu
