// Sorting along an axis, in shared memory.
#include <algorithm>
#include <bit>

#include "cuda/codegen/lower_lanes.h"
#include "cuda/codegen/lower_values.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

/// Lines lie one after the other, each filled up to a power of two. sort and argsort of one tile
/// are done at once where the block has both.
void lower_sort(Lowering& cx, const Instruction& made) {
    if (cx.find(made.result()) != nullptr) return;  // with the other one
    const auto& how = made.get<ir::SortAttributes>();
    const Value source = made.operands[0];
    const DType dtype = cx.type(source).dtype;
    const ir::Shape& shape = cx.type(source).shape;
    const auto a = static_cast<std::size_t>(how.axis);
    std::vector<const Instruction*> wanted;
    bool with_places = is_float(dtype);  // which tell zeros apart
    for (const Instruction& each : cx.block->body) {
        const bool same = (each.op == Op::sort || each.op == Op::argsort) &&
                          each.operands[0] == source && each.get<ir::SortAttributes>() == how;
        if (!same) continue;
        wanted.push_back(&each);
        with_places |= each.op == Op::argsort;
    }
    const bool wide = size_of(dtype) == 8;
    const char* const word = wide ? "sorting::Wide" : with_places ? "u64" : "u32";
    const int bytes = wide ? 16 : with_places ? 8 : 4;
    const auto held = static_cast<std::uint64_t>(cover(shape[how.axis]).size());
    const auto length = static_cast<std::int64_t>(std::bit_ceil(held));
    std::int64_t lines = 1;
    for (int axis = 0; axis < shape.rank(); ++axis) {
        if (axis != how.axis) lines *= cover(shape[axis]).size();
    }
    const std::int64_t total = lines * length;
    const auto index = [&](const Layout& layout, int r) {
        const Coordinates at = layout.register_coordinates(r);
        std::string line_text = "0";
        for (int axis = 0; axis < shape.rank(); ++axis) {
            if (axis == how.axis) continue;
            line_text = fmt::format("({}) * {} + {}", line_text, cover(shape[axis]).size(),
                                    cx.coordinate(layout, axis, at[axis]));
        }
        return fmt::format("sorting::slot<{}>(({}) * {} + {})", word, line_text, length,
                           cx.coordinate(layout, how.axis, at[a]));
    };
    const Held* known = cx.find(source);
    const Layout from = known != nullptr ? known->layout : cx.home(source);
    const Names elements = elements_of(cx, source, from);
    constexpr std::int64_t kLeast = 32;  // slots of fewer words may lie anywhere among so many
    const int id = cx.buffer((total + kLeast - 1) / kLeast * kLeast * bytes);
    const std::string base = cx.fresh("words");
    cx.access_shared("writes", {id});
    cx.line("auto* const {} = reinterpret_cast<{}*>(memory + {});", base, word, buffer_name(id));
    if (static_cast<std::int64_t>(held) != length) {
        cx.line(
            "for (int i = threadIdx.x; i < {}; i += {}) {}[sorting::slot<{}>(i)] = "
            "sorting::last_word<{}>();",
            total, 32 * cx.warps, base, word, word);
        cx.append(schedule::Op::barrier);
        cx.access_shared("writes", {id});
    }
    const std::string own = owner(from);
    for (int r = 0; r < from.registers(); ++r) {
        const std::string inside =
            from.has_phantoms(how.axis)
                ? fmt::format("{} < {}",
                              cx.coordinate(from, how.axis, from.register_coordinates(r)[a]),
                              shape[how.axis])
                : "";
        const std::string text =
            fmt::format("sorting::word_of<{}, {}>({}, {})", word, how.descending, elements[r],
                        cx.coordinate(from, how.axis, from.register_coordinates(r)[a]));
        cx.line(
            "{}{}[{}] = {};", own.empty() ? "" : fmt::format("if ({}) ", own), base, index(from, r),
            inside.empty() ? text
                           : fmt::format("{} ? {} : sorting::last_word<{}>()", inside, text, word));
    }
    cx.access_shared("reads", {id});
    const auto kept = static_cast<std::int64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(how.count, 8))));
    cx.line("sorting::{}<{}, {}, {}, {}>({});", kept < length ? "keep_first" : "sort_runs",
            std::min(kept, length), length, total, 32 * cx.warps, base);
    for (const Instruction* each : wanted) {
        const Value result = each->result();
        const Layout to = cx.home(result);
        const Held sorted = cx.variables(fmt::format("v{}", result.id), to, cx.type(result).dtype);
        const Names& names = cx.names(sorted);
        const std::string value_type = register_type(cx.type(result).dtype);
        for (int r = 0; r < to.registers(); ++r) {
            const std::string at = fmt::format("{}[{}]", base, index(to, r));
            cx.line("const {} {} = {};", value_type, names[r],
                    each->op == Op::argsort ? fmt::format("sorting::place_of<{}>({})", word, at)
                                            : fmt::format("sorting::element_of<{}, {}>({})",
                                                          value_type, how.descending, at));
        }
        cx.hold(result, sorted);
    }
}

}  // namespace tilewright::cuda
