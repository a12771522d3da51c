// Elements are found, written in the layout that is wanted, or converted.
#include "cuda/codegen/lower_values.h"

#include "cuda/codegen/lower_lanes.h"
#include "cuda/codegen/lower_memory.h"
#include "cuda/codegen/lower_operations.h"
#include "cuda/codegen/lower_shared.h"
#include "support/check.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

std::optional<Names> view_of(Lowering& cx, const Instruction& made, const Layout& layout) {
    const Value source = made.operands[0];
    const ir::Shape& from = cx.type(source).shape;
    const int registers = layout.registers();
    const auto by_coordinates = [&](const Layout& other, auto&& map) {
        const Names names = elements_of(cx, source, other);
        std::map<Coordinates, int> places;
        for (int r = 0; r < std::ssize(names); ++r) {
            places[other.register_coordinates(r)] = r;
        }
        Names result;
        for (int r = 0; r < registers; ++r) {
            const auto found = places.find(map(layout.register_coordinates(r)));
            TW_ASSERT(found != places.end());
            result.push_back(names[found->second]);
        }
        return result;
    };
    switch (made.op) {
        case Op::broadcast:
            if (from.rank() == 0)
                return Names(static_cast<std::size_t>(registers), scalar_text(cx, source));
            return by_coordinates(layout.narrowed(from), [&](Coordinates at) {
                for (int a = 0; a < from.rank(); ++a) {
                    if (from[a] == 1) at[a] = 0;
                }
                return at;
            });
        case Op::expand_dims:
            return elements_of(cx, source, layout.without(made.get<ir::AxisAttributes>().axis));
        case Op::reshape: {
            const auto other = layout.reshaped(from);
            TW_ASSERT(other.has_value());
            return elements_of(cx, source, *other);
        }
        case Op::transpose: {
            const auto& permutation = made.get<ir::PermutationAttributes>().permutation;
            std::vector<int> inverse(permutation.size());
            for (std::size_t i = 0; i < permutation.size(); ++i) {
                inverse[permutation[i]] = static_cast<int>(i);
            }
            return by_coordinates(layout.transposed(inverse), [&](const Coordinates& at) {
                Coordinates result{};
                for (std::size_t i = 0; i < permutation.size(); ++i) {
                    result[permutation[i]] = at[i];
                }
                return result;
            });
        }
        default:
            return std::nullopt;
    }
}

}  // namespace

std::string scalar_text(Lowering& cx, Value value) {
    return elements_of(cx, value, cx.scalar_layout()).front();
}

std::string index_text(Lowering& cx, Value value) {
    const std::string text = scalar_text(cx, value);
    return cx.type(value).dtype == DType::i64 ? text : fmt::format("static_cast<i64>({})", text);
}

Held held_anywhere(Lowering& cx, Value value) {
    const Held* const known = cx.find(value);
    const Layout layout = known != nullptr ? known->layout : cx.home(value);
    Names names = elements_of(cx, value, layout);
    if (const Held* const held = cx.find(value, layout)) return *held;
    return {layout, std::move(names)};
}

Names elements_of(Lowering& cx, Value value, const Layout& layout) {
    TW_ASSERT(layout.shape == cx.type(value).shape, "{} wanted as {}", layout.shape.rank(),
              cx.type(value).shape.rank());
    if (const Held* held = cx.find(value, layout)) return held->names;
    const Instruction* made = cx.facts.definition(value);
    const DType dtype = cx.type(value).dtype;
    if (made != nullptr && made->op == Op::reduce && !cx.unread.empty()) {
        read_warp_parts(cx);
        return elements_of(cx, value, layout);
    }
    if (cx.plan.loads.repeated.count(value) != 0 && cx.find(value) == nullptr) {
        lower_load(cx, *made);
        return elements_of(cx, value, layout);
    }
    if (made != nullptr && made->op == Op::constant) {
        return Names(static_cast<std::size_t>(layout.registers()),
                     literal(dtype, made->get<ir::ConstantAttributes>().bits));
    }
    const bool again = cx.forgotten.count(value) != 0 && cx.plan.loads.repeated.count(value) == 0;
    if (made != nullptr && (cx.facts.is_lazy(*made) || again)) {
        Names names;
        if (made->op == Op::iota) {
            const int axis = made->get<ir::AxisAttributes>().axis;
            for (int r = 0; r < layout.registers(); ++r) {
                const std::string at =
                    cx.coordinate(layout, axis, layout.register_coordinates(r)[axis]);
                names.push_back(dtype == DType::i32
                                    ? at
                                    : fmt::format("ops::cast<{}>({})", storage_type(dtype), at));
            }
        } else if (auto view = view_of(cx, *made, layout)) {
            names = std::move(*view);
        } else {
            names = lower_elementwise(cx, *made, layout, value);
        }
        cx.hold(value, layout, names);
        return names;
    }
    const Held* held = cx.find(value);
    TW_ASSERT(held != nullptr, "value {} has no elements yet", value.id);
    Held converted = convert(cx, *held, layout, dtype);
    const Names names = converted.names;
    cx.hold(value, std::move(converted));
    return names;
}

Held convert(Lowering& cx, const Held& from, const Layout& to, DType dtype) {
    const Conversion plan = conversion(from.layout, to);
    if (plan.kind == Conversion::Kind::relabel) {
        Names names;
        for (int source : plan.source) names.push_back(from.names[source]);
        return {to, std::move(names)};
    }
    if (plan.kind == Conversion::Kind::shuffle && to.registers() <= 64) {
        const schedule::Value source = cx.value_of(from, dtype);
        schedule::Instruction& made = cx.append(schedule::Op::shuffle);
        made.operands = {source};
        return cx.result_of(made, cx.fresh("s"), to, dtype);
    }
    cx.line("// through shared memory from {} to {}", from.layout.to_string(), to.to_string());
    const std::int64_t pitch = row_pitch(from.layout, to, size_of(dtype));
    const int rank = to.shape.rank();
    std::int64_t rows = 1;
    for (int axis = 0; axis + 1 < rank; ++axis) rows *= cover(to.shape[axis]).size();
    const int bytes = size_of(dtype);
    const auto in_rows = [&](const Layout& layout) {
        return TilePlace{pitch, {}, {}, {}, vector_in_rows(layout, pitch, bytes)};
    };
    return through_shared(cx, {from}, in_rows(from.layout), to, in_rows(to),
                          rank == 0 ? 1 : rows * pitch, dtype);
}

}  // namespace tilewright::cuda
