// Loads, stores and atomics: addresses, bounds, vectors.
#include "cuda/codegen/lower_memory.h"

#include <algorithm>
#include <numeric>

#include "cuda/codegen/lower_ahead.h"
#include "cuda/codegen/lower_shared.h"
#include "cuda/codegen/lower_values.h"
#include "cuda/schedule/array_access.h"
#include "support/check.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Value;

namespace {

bool distinct_targets(const Instruction& made) {
    const auto& indices = made.get<ir::AccessAttributes>().indices;
    return std::none_of(indices.begin(), indices.end(),
                        [](const ir::Index& index) { return index.kind == ir::Index::Kind::tile; });
}

schedule::Value scalar_or_tile(Lowering& cx, Value value, const Layout& layout) {
    return cx.type(value).is_scalar() ? scalar_of(cx, value) : value_in(cx, value, layout);
}

/// Elements that a thread accesses at once.
int vector_of(const Lowering& cx, const Instruction& made, const Layout& layout) {
    int axis = -1;
    int vector = cx.facts.contiguous_vector(made, &axis);
    if (vector == 1) return 1;
    vector = std::min(vector, vector_length(layout, axis));
    const Value mask = ir::access(made).mask;
    if (mask && cx.facts.varies_along(mask, axis)) return 1;
    const auto& indices = made.get<ir::AccessAttributes>().indices;
    if (cx.facts.stays_inside(made, indices.size() - 1)) {
        vector = static_cast<int>(std::gcd(indices.back().size, std::int64_t{vector}));
    }
    return vector;
}

}  // namespace

std::string ref_name(const Lowering& cx, Value ref) {
    std::string text = fmt::format("r{}", ref.id);
    const std::string& hint = cx.function.value_name(ref);
    if (!hint.empty()) text += '_';
    for (char c : hint) text += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    return text;
}

void describe_access(Lowering& cx, schedule::Instruction& same, const Instruction& made,
                     int vector) {
    const auto& attributes = made.get<ir::AccessAttributes>();
    const ir::Access access = ir::access(made);
    std::vector<std::int64_t> sizes, steps, bounds;
    for (std::size_t dim = 0; dim < attributes.indices.size(); ++dim) {
        const ir::Index& index = attributes.indices[dim];
        const bool is_tile = index.kind == ir::Index::Kind::tile;
        sizes.push_back(index.kind == ir::Index::Kind::scalar ? 0
                        : is_tile                             ? schedule::kGathered
                        : index.size == 0                     ? schedule::kEmpty
                                                              : index.size);
        steps.push_back(index.kind == ir::Index::Kind::slice ? index.stride : 1);
        const bool inside = is_tile ? attributes.in_bounds : cx.facts.stays_inside(made, dim);
        bounds.push_back(static_cast<std::int64_t>(
            inside ? schedule::Bound::none
            : index.kind == ir::Index::Kind::slice && cx.facts.non_negative(access.indices[dim])
                ? schedule::Bound::end
                : schedule::Bound::both));
    }
    same.with_symbol("of", ref_name(cx, access.ref)).with("index", std::move(sizes));
    const auto are = [](const std::vector<std::int64_t>& list, std::int64_t all) {
        return std::all_of(list.begin(), list.end(), [&](auto one) { return one == all; });
    };
    if (!are(steps, 1)) same.with("steps", std::move(steps));
    if (!are(bounds, 0)) same.with("bounds", std::move(bounds));
    if (vector > 1) same.with("vector", vector);
    if (access.mask) same.flag("masked");
}

schedule::Instruction array_access(Lowering& cx, const Instruction& made, const Layout& layout,
                                   std::vector<schedule::Value> indices) {
    const ir::Access access = ir::access(made);
    schedule::Value mask;
    if (access.mask) mask = scalar_or_tile(cx, access.mask, layout);
    if (indices.empty()) {
        const ir::AccessShape shape = ir::access_shape(cx.function, made);
        for (std::size_t dim = 0; dim < access.indices.size(); ++dim) {
            const Value index = access.indices[dim];
            const ir::Shape& narrow = cx.type(index).shape;
            const Layout wanted =
                narrow.rank() == 0
                    ? cx.scalar_layout()
                    : schedule::index_layout(layout, shape.axis[dim], shape.tile_rank, narrow);
            indices.push_back(value_in(cx, index, wanted));
        }
    }
    schedule::Instruction same = schedule::tile_instruction(cx.function, made);
    same.operands = std::move(indices);
    if (mask) same.operands.push_back(mask);
    describe_access(cx, same, made, vector_of(cx, made, layout));
    return same;
}

void lower_load(Lowering& cx, const Instruction& made) {
    const Value ref = made.operands[0];
    if (cx.plan.staged.contains(made)) {
        if (cx.streamed.count(&made) != 0) return;  // the loop copies it
        cx.access_global(ref, false);
        return lower_staged(cx, made);
    }
    cx.access_global(ref, false);
    const Value result = made.result();
    const DType dtype = cx.type(result).dtype;
    const Layout layout = cx.home(result);
    const ir::Access access = ir::access(made);
    schedule::Value other;
    if (access.other) other = scalar_or_tile(cx, access.other, layout);
    const bool global = cx.function.ref_type(ref).space == ir::Space::global;
    if (const auto ahead = cx.prefetched.find(result); ahead != cx.prefetched.end()) {
        if (ahead->second.in_words) cx.packed[result] = ahead->second.now.value;
        return cx.hold(result, ahead->second.now);
    }
    schedule::Instruction same = array_access(cx, made, layout);
    // In words of 16 bytes elements are unpacked at their use: they take half the registers, and
    // branches that load them do not wait for memory one after the other.
    const schedule::ArrayAccess form(cx.program, same);
    const bool zeros = !access.other || cx.facts.is_constant(access.other, 0);
    const bool in_words = form.vector * size_of(dtype) == 16 && zeros && !form.cuts_vectors;
    if (in_words) {
        same.flag("words");
    } else if (other) {
        same.operands.push_back(other);
        same.flag("other");
    }
    const bool again = cx.plan.loads.repeated.count(result) != 0;
    const std::string name = in_words ? cx.fresh("raw")
                             : again  ? cx.fresh(fmt::format("v{}x", result.id).c_str())
                                      : fmt::format("v{}", result.id);
    Held held = cx.result_of(cx.append(std::move(same)), name, layout, dtype);
    if (in_words && global) cx.packed[result] = held.value;
    cx.hold(result, std::move(held));
}

Value before_rounding(const Lowering& cx, Value value) {
    return cx.find(value) != nullptr ? value : cx.facts.before_rounding(value);
}

void lower_store(Lowering& cx, const Instruction& made) {
    const ir::Access access = ir::access(made);
    const DType dtype = cx.function.ref_type(access.ref).dtype;
    const Value source = before_rounding(cx, access.values[0]);
    // Each thread reads only its own elements of private scratch, in the home layout.
    const bool ordered = cx.plan.own_scratch.count(access.ref) == 0;
    const Held* known = ordered ? cx.find(source) : nullptr;
    Layout layout = known != nullptr ? known->layout : cx.home(source);
    schedule::Value stored = value_in(cx, source, layout);
    int axis = -1;
    const int aligned = cx.facts.contiguous_vector(made, &axis);
    // Fragments of narrow elements would be stored in pieces of a few bytes.
    if (ordered && aligned * size_of(dtype) == 16 && size_of(dtype) <= 2 &&
        vector_length(layout, axis) * size_of(dtype) < 8 &&
        layout.shape.size() >= std::int64_t{32} * cx.warps * aligned / 2) {
        std::vector<int> order{axis};
        for (int a = layout.shape.rank() - 1; a >= 0; --a) {
            if (a != axis) order.push_back(a);
        }
        const Layout rows = blocked(layout.shape, cx.warps, aligned, order);
        stored = convert(cx, {layout, stored}, rows, dtype).value;
        layout = rows;
    }
    cx.access_global(access.ref, true);
    schedule::Instruction same = array_access(cx, made, layout);
    if (distinct_targets(made)) {
        same.operands.push_back(stored);
        cx.append(std::move(same));
        return;
    }
    const int id = cx.buffer(std::max<std::int64_t>(layout.shape.size(), 1) * 8);
    same.op = schedule::Op::targets;
    same.with_symbol("writes", buffer_name(id));
    const Held targets = cx.result_of(cx.append(std::move(same)), "", layout, DType::u64);
    schedule::Instruction& last = cx.append(schedule::Op::last_writers);
    last.operands = {targets.value};
    last.with_symbol("reads", buffer_name(id));
    const Held writers = cx.result_of(last, cx.fresh("w"), layout, DType::boolean);
    cx.append(schedule::Op::store_targets).operands = {targets.value, writers.value, stored};
}

void lower_atomic(Lowering& cx, const Instruction& made) {
    const ir::Access access = ir::access(made);
    const Value result = made.result();
    const DType dtype = cx.function.ref_type(access.ref).dtype;
    const Layout layout = cx.home(result);
    std::vector<schedule::Value> values;
    for (Value value : access.values) values.push_back(value_in(cx, value, layout));
    cx.access_global(access.ref, true);
    schedule::Instruction same = array_access(cx, made, layout);
    same.operands.insert(same.operands.end(), values.begin(), values.end());
    const bool owned = layout.copied_lanes() == 0 && layout.copied_warps() == 0;
    const Held held =
        cx.result_of(cx.append(std::move(same)), fmt::format("v{}", result.id), layout, dtype);
    if (owned || cx.facts.users(result).empty()) {
        cx.hold(result, held);
        return;
    }
    // The owners of the elements pass the results to the threads that hold copies.
    TilePlace place;
    const ir::Shape all = covered(layout.shape);
    place.extents.assign(all.dims().begin(), all.dims().end());
    cx.hold(result, through_shared(cx, {held}, place, layout, place, all.size(), dtype));
}

}  // namespace tilewright::cuda
