// Lowers dots: which operand is broadcast, which is read in vectors, and what is copied for them.
#include <algorithm>

#include "cpu/lower.h"
#include "ir/access.h"
#include "support/check.h"

namespace tilewright::cpu {

using ir::Op;
using ir::Value;

namespace {

std::int64_t padded(std::int64_t lanes) {
    return ceil_div(lanes, kPanelLanes) * kPanelLanes;
}

/// True when elements along `axis` are contiguous in memory (within panels, if these are along it).
bool is_contiguous(const Tile& tile, int axis) {
    const std::size_t a = axis;
    if (tile.home == Home::view) {
        return tile.unit_axis >= 0 && tile.view_axis[a] == tile.unit_axis;
    }
    if (tile.home != Home::buffer) return false;
    return tile.lane_axis == axis || (tile.lane_axis < 0 && tile.stride[a] == 1);
}

/// True when every group of elements along the contiguous `axis` is a whole word of 32 bits. What
/// is unknown before the run is ensured by the load of a view.
bool has_whole_words(const Tile& tile, int axis, int group) {
    const auto whole = [group](std::int64_t elements) { return elements % group == 0; };
    if (!whole(tile.shape[axis]) || !is_contiguous(tile, axis)) return false;
    if (tile.home == Home::view) return true;
    bool all = whole(tile.offset);
    if (tile.lane_axis == axis) all = all && whole(tile.width) && whole(tile.panel_stride);
    for (int other = 0; other < tile.shape.rank(); ++other) {
        if (other == axis || tile.shape[other] == 1) continue;
        all = all && whole(tile.stride[other]);
    }
    return all;
}

/// A tile with whole words along `axis` as a tile of words.
Tile as_words(Tile tile, int axis, int group) {
    tile.dtype = DType::u32;
    tile.shape[axis] /= group;
    if (tile.home == Home::view) {
        tile.group = group;
        return tile;
    }
    tile.offset /= group;
    if (tile.lane_axis == axis) {
        tile.width /= group;
        tile.panel_stride /= group;
    }
    for (int other = 0; other < tile.shape.rank(); ++other) {
        if (other != axis) tile.stride[other] /= group;
    }
    return tile;
}

GemmFunction function_for(const DotForm& form, DType result) {
    const Kernels& table = kernels();
    switch (form.element) {
        case DType::bf16:
            return table.gemm_bf16_pairs;
        case DType::i16:
            return table.gemm_i16_pairs;
        case DType::i32:
        case DType::u32:
            return table.gemm_i32;
        case DType::f32:
            return table.gemm_f32;
        default:
            return result == DType::f64 ? table.gemm_f64 : table.gemm_i64;
    }
}

/// Products of 16-bit integers are summed in 32 bits, and narrowed when they are complete.
bool has_wider_sums(DType dtype) {
    return dtype == DType::i16 || dtype == DType::u16;
}

}  // namespace

/// True when a kernel can multiply rows of the vector operand in place in an array.
bool Lowering::multiplies_rows(const ir::Instruction& dot) const {
    const ir::Type& type = function_.type(dot.result());
    if (type.dtype != DType::f32 || kernels().gemm_rows_f32 == nullptr) return false;
    if (function_.type(dot.operands[0]).dtype != DType::f32) return false;
    const int lane = is_vector(type.shape) ? long_axis(type.shape) : lanes_[dot.result().id].axis;
    return has_few_rows(type.shape, lane);
}

/// True for a rounding to bf16 that dots do as they form pairs.
bool Lowering::rounds_for_dots(const ir::Instruction& instruction) const {
    const Value result = instruction.result();
    if (instruction.op != Op::cast || function_.type(result).dtype != DType::bf16) return false;
    const Tile& from = places_[instruction.operands[0].id].tile;
    const auto& users = users_[result.id];
    return from.dtype == DType::f32 && from.home == Home::buffer &&
           feeds_only_dots(users, result) &&
           std::all_of(users.begin(), users.end(),
                       [&](const auto* user) { return dot_form(function_, *user).group > 1; });
}

/// For acc * factor, with a factor per row or column, that only a dot of the same block reads, to
/// add to it: uses acc as the result, records the factor for the dot, and returns true.
bool Lowering::scales_accumulator(const ir::Instruction& instruction) {
    const Value result = instruction.result();
    const auto& users = users_[result.id];
    if (instruction.op != Op::mul || users.size() != 1) return false;
    const ir::Instruction& dot = *users[0];  // the only one, and with one operand
    if (dot.op != Op::dot || dot.operands.size() < 3 || dot.operands[2] != result) return false;
    const auto& body = block_->body;
    if (std::none_of(body.begin(), body.end(), [&](const auto& i) { return &i == &dot; })) {
        return false;
    }
    const ir::Type& type = function_.type(result);
    const int rank = type.shape.rank(), lane = lanes_[dot.result().id].axis;
    const bool is_float = type.dtype == DType::f32 || type.dtype == DType::f64;
    if (!is_float || is_vector(type.shape) || lane < rank - 2) return false;
    const std::size_t along = lane;
    const std::size_t across = lane == rank - 1 ? rank - 2 : rank - 1;
    for (const int which : {0, 1}) {
        const Value acc = instruction.operands[which];
        const Value factor = instruction.operands[1 - which];
        const Tile& by = tile(factor);
        const bool is_line = by.home == Home::buffer && by.lane_axis < 0 &&
                             by.shape.rank() == rank && by.stride[along] + by.stride[across] == 1;
        if (!is_line || tile(acc).home != Home::buffer || tile(acc).shape != type.shape) continue;
        set_place(result, tile(acc));
        scales_[result] = factor;
        return true;
    }
    return false;
}

const ir::Instruction* Lowering::maker_of(Value value) const {
    const auto& body = block_->body;
    const auto found = std::find_if(body.begin(), body.end(), [&](const auto& instruction) {
        return std::find(instruction.results.begin(), instruction.results.end(), value) !=
               instruction.results.end();
    });
    return found == body.end() ? nullptr : &*found;
}

/// The store to an array that a dot may do itself, or nullptr: the only reader of its result, to
/// rows whose elements follow each other, of an array that the program also reads (results that are
/// only written may be written past the caches). If the dot adds to a tile, the tile was loaded
/// from there for this alone. Nothing in between touches memory.
const ir::Instruction* Lowering::store_of(const ir::Instruction& dot) const {
    const Value result = dot.result();
    const ir::Type& type = function_.type(result);
    const int lane = type.shape.rank() - 1;
    const auto& users = users_[result.id];
    if (users.size() != 1 || users[0]->op != Op::store || type.shape.rank() != 2) return nullptr;
    if (is_vector(type.shape) || lanes_[result.id].axis != lane || multiplies_rows(dot))
        return nullptr;
    if (has_wider_sums(type.dtype)) return nullptr;
    const ir::Instruction& store = *users[0];
    const auto& to = store.get<ir::AccessAttributes>();
    const auto is_tile = [](const ir::Index& index) { return index.kind == ir::Index::Kind::tile; };
    const std::size_t num_indices = to.indices.size();
    if (to.has_mask || store.operands[1 + num_indices] != result ||
        contiguous_axis(to, type.shape) != lane ||
        std::any_of(to.indices.begin(), to.indices.end(), is_tile)) {
        return nullptr;
    }
    // The store's place is computed before the product.
    for (std::size_t i = 0; i < num_indices; ++i) {
        if (place(store.operands[1 + i]).tile.home == Home::none) return nullptr;
    }
    const Value ref = store.operands[0];
    if (function_.ref_type(ref).dtype != type.dtype || !program_.refs[refs_.at(ref.id)].is_read)
        return nullptr;
    const ir::Instruction* first = &dot;
    if (dot.operands.size() > 2) {
        first = maker_of(dot.operands[2]);
        if (!first || first->op != Op::load || users_[dot.operands[2].id].size() != 1)
            return nullptr;
        const auto& from = first->get<ir::AccessAttributes>();
        const bool same =
            std::equal(store.operands.begin(), store.operands.begin() + 1 + num_indices,
                       first->operands.begin(),
                       first->operands.begin() + 1 + from.indices.size()) &&
            from.indices == to.indices;
        if (from.has_mask || !same) return nullptr;
    }
    const ir::Instruction* const begin = block_->body.data();
    const ir::Instruction* const end = begin + block_->body.size();
    if (&store <= first || &store >= end || &dot < begin || &dot > &store) return nullptr;
    for (const ir::Instruction* between = first + 1; between < &store; ++between) {
        const bool reads = between->op == Op::load && between < &dot;
        if (!between->blocks.empty() || (ir::is_access(between->op) && !reads)) return nullptr;
    }
    return &store;
}

/// True for a load of a tile that a dot adds to in the array.
bool Lowering::is_added_in_place(const ir::Instruction& load) const {
    const auto& users = users_[load.result().id];
    if (users.size() != 1 || users[0]->op != Op::dot) return false;
    const ir::Instruction& dot = *users[0];
    return dot.operands.size() > 2 && dot.operands[2] == load.result() &&
           maker_of(dot.result()) == &dot && store_of(dot) != nullptr;
}

/// True when a dot is so large that its operands are packed block by block where their rows are far
/// apart in an array.
bool Lowering::is_blocked(const ir::Instruction& dot) const {
    constexpr std::int64_t kLeast = 64, kLeastDepth = 128;
    const ir::Shape& shape = function_.type(dot.result()).shape;
    const int rank = shape.rank();
    const auto& attributes = dot.get<ir::DotAttributes>();
    const ir::Shape& a = function_.type(dot.operands[0]).shape;
    return shape[rank - 2] >= kLeast && shape[rank - 1] >= kLeast &&
           shape[rank - 2] * shape[rank - 1] >= 2 * kLeast * kLeast &&
           a[attributes.transpose_a ? rank - 2 : rank - 1] >= kLeastDepth;
}

/// What `pack` makes of a tile; of a view once, as several dots may need the same copy.
Tile Lowering::packed_once(const Tile& tile, int at_depth, int group, std::int64_t width,
                           const std::function<Tile()>& pack) {
    if (tile.home != Home::view) return pack();
    const auto is_same = [&](const Packed& other) {
        return other.view.index == tile.index && other.view.view_axis == tile.view_axis &&
               other.view.shape == tile.shape && other.group == group && other.width == width;
    };
    const auto found = std::find_if(packed_.begin(), packed_.end(), is_same);
    if (found != packed_.end()) return found->copy;
    const Tile copy = pack();
    packed_.push_back({tile, group, width, at_depth, copy});
    return copy;
}

/// The vector operand of a dot (batch, k, lanes), with lanes in panels of `width` or contiguous.
Tile Lowering::vector_operand(const Tile& operand, int at_depth, std::int64_t width) {
    if (operand.home == Home::view) {
        if (is_contiguous(operand, 2)) return operand;
        return packed_once(operand, at_depth, 1, width, [&] {
            return in_layout(operand, at_depth, {2, width});
        });
    }
    const bool panels = operand.lane_axis == 2 && operand.width == width;
    const bool plain = operand.lane_axis < 0 && operand.stride[2] == 1;
    if (panels || plain) return operand;
    return in_layout(operand, at_depth, {2, width});
}

/// Groups of rows of (batch, k, lanes), of bf16 (or f32 to be rounded), i16 or bytes, as (batch, k
/// / group, lanes).
Tile Lowering::interleaved(const Tile& operand, int at_depth, std::int64_t width, int group) {
    return packed_once(operand, at_depth, group, width,
                       [&] { return interleave(operand, at_depth, width, group); });
}

Tile Lowering::interleave(const Tile& operand, int at_depth, std::int64_t width, int group) {
    Interleave interleave;
    interleave.in = is_contiguous(operand, 2) ? operand : in_layout(operand, at_depth, {2, width});
    const ir::Shape& shape = operand.shape;
    interleave.out = new_tile(DType::u32, {shape[0], shape[1] / group, shape[2]}, {2, width});
    interleave.function =
        group == 4 ? kernels().interleave_quads() : kernels().interleave_pairs(operand.dtype);
    const Tile result = interleave.out;
    emit_at(at_depth, interleave);
    return result;
}

/// The broadcast operand (batch, row, k) as words along k.
Tile Lowering::broadcast_words(const Tile& operand, int at_depth, const DotForm& form) {
    const int group = form.group;
    const Tile from = group == 4 ? operand : converted(operand, at_depth, form.element);
    if (has_whole_words(from, 2, group)) return as_words(from, 2, group);
    const ir::Shape& shape = from.shape;
    if (!wants_k_contiguous(form)) {
        const Tile columns = with_axes(from, {shape[0], shape[2], shape[1]}, std::array{0, 2, 1});
        const Tile words = interleaved(columns, at_depth, padded(shape[1]), group);
        return with_axes(words, {shape[0], shape[1], shape[2] / group}, std::array{0, 2, 1});
    }
    return as_words(in_layout(from, at_depth, {2, padded(shape[2])}), 2, group);
}

/// The vector operand (batch, k, lanes) as words along k.
Tile Lowering::vector_words(const Tile& operand, int at_depth, std::int64_t width,
                            const DotForm& form) {
    const int group = form.group;
    // Rows of f32 are rounded as they are interleaved.
    const bool rounds = form.element == DType::bf16 && operand.dtype == DType::f32;
    if (rounds) return interleaved(operand, at_depth, width, group);
    const Tile from = group == 4 ? operand : converted(operand, at_depth, form.element);
    if (has_whole_words(from, 1, group)) {
        return packed_once(from, at_depth, group, width, [&] {
            return in_layout(as_words(from, 1, group), at_depth, {2, width});
        });
    }
    return interleaved(from, at_depth, width, group);
}

void Lowering::lower_dot(const ir::Instruction& instruction) {
    const auto& attributes = instruction.get<ir::DotAttributes>();
    const Value result = instruction.result();
    const ir::Shape& shape = function_.type(result).shape;
    const int rank = shape.rank();
    const int first = rank - 2;
    const bool has_acc = instruction.operands.size() > 2;
    const DType dtype = function_.type(result).dtype;
    const DotForm form = dot_form(function_, instruction);
    const bool narrow = has_wider_sums(dtype);
    const DType sums = narrow ? DType::i32 : dtype;

    // The reader of the product may prefer lanes along the batch, but no kernel writes them.
    const ir::Instruction* const store = store_of(instruction);
    const Tile wanted = store    ? lower_target(*store)
                        : narrow ? new_tile(sums, shape, lanes_[result.id])
                                 : new_result(result);
    if (store) set_place(result, wanted);
    const bool along_batch = wanted.lane_axis >= 0 && wanted.lane_axis < first;
    const Tile out = along_batch ? new_tile(sums, shape, {rank - 1, kPanelLanes}) : wanted;
    if (has_acc && !store) {
        const Value acc = instruction.operands[2];
        copy(narrow ? converted(tile(acc), place(acc).depth, sums) : tile(acc), out);
    }

    // (batch, row, column), or (batch, column, row) when swapped.
    const auto canonical = [&](const Tile& tile, bool swapped) {
        ir::Shape to{rank == 3 ? tile.shape[0] : 1, tile.shape[first + swapped],
                     tile.shape[first + !swapped]};
        const std::array<int, 3> from{rank == 3 ? 0 : -1, first + swapped, first + !swapped};
        return with_axes(tile, to, from);
    };
    const int lane = is_vector(shape) ? long_axis(shape) : lanes_[result.id].axis;
    const bool lanes_are_m = dot_roles(function_, instruction, lane).lanes_are_m;
    const std::int64_t width = out.lane_axis >= 0 ? out.width : kPanelLanes;
    struct Operand {
        Tile tile;
        int depth;
    };
    // Operand `i` with k last or, for the vector operand, in the middle.
    const auto operand = [&](std::size_t i, bool swapped) {
        const Value value = instruction.operands[i];
        const int at_depth = place(value).depth;
        const Tile from =
            form.group > 1 ? tile(value) : converted(tile(value), at_depth, form.element);
        return Operand{canonical(from, swapped), at_depth};
    };
    const Operand a = operand(0, lanes_are_m != attributes.transpose_a);
    const Operand b = operand(1, lanes_are_m != attributes.transpose_b);
    const Operand& vector = lanes_are_m ? a : b;
    const Operand& broadcast = lanes_are_m ? b : a;

    Dot dot;
    dot.dtype = sums;
    dot.element = form.element;
    dot.batch = rank == 3 ? shape[0] : 1;
    dot.m = shape[first];
    dot.n = shape[first + 1];
    dot.k = broadcast.tile.shape[2];
    dot.accumulate = has_acc;
    if (store) dot.stored_ref = refs_.at(store->operands[0].id);
    dot.out = canonical(out, lanes_are_m);
    if (const auto scale = has_acc ? scales_.find(instruction.operands[2]) : scales_.end();
        scale != scales_.end()) {
        dot.scale = canonical(tile(scale->second), lanes_are_m);
    }
    if (form.group > 1) {
        dot.k /= form.group;
        dot.broadcast = broadcast_words(broadcast.tile, broadcast.depth, form);
        dot.vector = vector_words(vector.tile, vector.depth, width, form);
        dot.function = form.group == 4 ? kernels().gemm_i8_quads(broadcast.tile.dtype == DType::i8,
                                                                 vector.tile.dtype == DType::i8)
                                       : function_for(form, dtype);
    } else if (multiplies_rows(instruction) && vector.tile.home == Home::view &&
               is_contiguous(vector.tile, 1)) {
        dot.by_rows = true;
        dot.function = kernels().gemm_rows_f32;
        dot.broadcast = is_contiguous(broadcast.tile, 2)
                            ? broadcast.tile
                            : in_layout(broadcast.tile, broadcast.depth, {2, padded(dot.k)});
        dot.vector = vector.tile;
    } else {
        dot.function = function_for(form, dtype);
        dot.broadcast = broadcast.tile;
        dot.vector = vector_operand(vector.tile, vector.depth, width);
    }
    if (is_blocked(instruction)) {
        const auto buffer = [&](const Tile& packed, std::int64_t elements) {
            return packed.home == Home::view ? new_tile(packed.dtype, {elements}, {}) : Tile();
        };
        dot.packed_broadcast =
            buffer(dot.broadcast, (Dot::kBlockRows + Dot::kGap) * (Dot::kBlockDepth + Dot::kGap));
        dot.packed_vector = buffer(dot.vector, Dot::kBlockDepth * padded(dot.out.shape[2]));
    }
    emit(dot);
    if (along_batch) copy(out, wanted);
    if (narrow) set_place(result, converted(wanted, depth(), dtype));
}

}  // namespace tilewright::cpu
