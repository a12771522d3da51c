// Programs without roles as CUDA C++: loads, stores and atomic operations, with their addresses,
// bounds and vectors.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <span>

#include "cuda/codegen/element_text.h"
#include "cuda/schedule/array_access.h"
#include "cuda/schedule/thread_printer.h"

namespace tilewright::cuda::schedule {

AccessText ThreadPrinter::access_text(const ArrayAccess& access, const Layout& layout) {
    const Parameter& array = access.array;
    const auto registers_of_tile = static_cast<std::size_t>(layout.registers());
    const std::string base = fmt::format("p{}", pointers_++);
    std::string uniform, pointer = data_text(array);
    std::vector<Names> conditions, offsets;  // per dimension, per register
    std::size_t cut_dim = conditions.max_size();
    std::vector<bool> bounded_axis(ir::kMaxTileRank, false);
    AccessText text;
    for (std::size_t d = 0; d < access.sizes.size(); ++d) {
        const int dim = static_cast<int>(d);
        const std::string stride = stride_text(array, dim), extent = extent_text(array, dim);
        const auto times_stride = [&](const std::string& position) {
            return stride == "1" ? position : fmt::format("({}) * {}", position, stride);
        };
        const Bound bound = access.bound(d);
        if (access.is_scalar(d)) {
            const std::string at = index(access.indices[d]);
            if (bound != Bound::none) {
                uniform = both(uniform, fmt::format("static_cast<u64>({}) < {}", at, extent));
            }
            pointer += " + " + times_stride(at);
            continue;
        }
        Names condition(registers_of_tile), offset(registers_of_tile);
        if (access.is_gathered(d)) {
            gathered(access, d, layout, times_stride, condition, offset);
            conditions.push_back(std::move(condition));
            offsets.push_back(std::move(offset));
            continue;
        }
        const int axis = access.axis[d];
        const std::int64_t size = access.size(d), by = access.step(d);
        const std::string start = index(access.indices[d]);
        const std::string thread = positions_.thread(layout, axis);
        pointer += " + " + times_stride(start);
        const std::string step = by == 1         ? stride
                                 : stride == "1" ? fmt::format("{}ll", by)
                                                 : fmt::format("({}ll * {})", by, stride);
        if (thread != "0") {
            pointer += step == "1" ? " + " + thread : fmt::format(" + {} * {}", thread, step);
        }
        std::string window, count;
        if (bound != Bound::none && by == 1) {
            bounded_axis[static_cast<std::size_t>(axis)] = true;
            const bool cuts = access.cuts_vectors && axis == access.vector_axis();
            if (bound == Bound::end && !cuts) {
                count = fmt::format("{}_n{}", base, dim);
                line("const int {} = count_inside({}, {}, {});", count, start, extent, size);
            } else {
                window = fmt::format("{}_w{}", base, dim);
                line("const Window {} = window({}, {}, {});", window, start, extent, size);
                if (cuts) text.window = window, cut_dim = conditions.size();
            }
        }
        std::map<std::int64_t, std::string> steps;
        for (std::size_t r = 0; r < registers_of_tile; ++r) {
            const std::int64_t part =
                layout.register_coordinates(static_cast<int>(r))[static_cast<std::size_t>(axis)];
            const std::string position = plus(thread, part);
            if (!window.empty()) {
                condition[r] = fmt::format("{}.contains({})", window, position);
            } else if (!count.empty()) {
                condition[r] = fmt::format("{} < {}", position, count);
            } else if (bound != Bound::none) {
                condition[r] = fmt::format("static_cast<u64>({} + {}ll * {}) < {}", start, by,
                                           position, extent);
            }
            if (part != 0) {
                std::string& known = steps[part];
                if (known.empty() && step == "1") {
                    known = fmt::format("{}", part);
                } else if (known.empty()) {
                    known = fmt::format("{}_{}_{}", base, dim, part);
                    line("const i64 {} = {} * {};", known, part, step);
                }
                offset[r] = known;
            }
            if (axis == access.vector_axis()) text.position.push_back(position);
        }
        conditions.push_back(std::move(condition));
        offsets.push_back(std::move(offset));
    }
    if (!uniform.empty()) {
        line("const bool {}_ok = {};", base, uniform);
        uniform = base + "_ok";
    }
    line("auto* const {} = {};", base, pointer);
    text.pointer = base;
    text.vector = access.vector;
    for (std::size_t r = 0; r < registers_of_tile; ++r) {
        std::string inside = uniform, beside = uniform, offset;
        for (std::size_t d = 0; d < conditions.size(); ++d) {
            inside = both(inside, conditions[d][r]);
            beside = both(beside, d == cut_dim ? "true" : conditions[d][r]);
        }
        for (const Names& part : offsets) {
            if (!part[r].empty()) offset += (offset.empty() ? "" : " + ") + part[r];
        }
        for (int axis = 0; axis < layout.shape.rank(); ++axis) {
            const auto a = static_cast<std::size_t>(axis);
            if (!layout.has_phantoms(axis) || bounded_axis[a]) continue;
            const std::int64_t part = layout.register_coordinates(static_cast<int>(r))[a];
            const std::string real =
                fmt::format("{} < {}", positions_.of(layout, axis, part), layout.shape[axis]);
            inside = both(inside, real);
            beside = both(beside, real);
        }
        if (access.mask) {
            const Names& masks = registers(access.mask);
            const std::string& mask = masks[masks.size() == 1 ? 0 : r];
            inside = both(inside, mask), beside = both(beside, mask);
        }
        text.inside.push_back(std::move(inside));
        text.beside.push_back(std::move(beside));
        text.address.push_back(offset.empty() ? base : base + " + " + offset);
    }
    return text;
}

template <typename TimesStride>
void ThreadPrinter::gathered(const ArrayAccess& access, std::size_t dim, const Layout& layout,
                             TimesStride&& times_stride, Names& condition, Names& offset) {
    const Value tile = access.indices[dim];
    const Names& names = registers(tile);
    const Layout& own = this->layout(tile);
    const ir::Shape& narrow = p_.type(tile).type.shape;
    const auto first = static_cast<std::size_t>(access.axis[dim]);
    std::map<Coordinates, std::size_t> places;
    for (std::size_t r = 0; r < names.size(); ++r) {
        places[own.register_coordinates(static_cast<int>(r))] = r;
    }
    const bool bounded = access.bound(dim) != Bound::none;
    const std::string extent = extent_text(access.array, static_cast<int>(dim));
    for (std::size_t r = 0; r < offset.size(); ++r) {
        const Coordinates full = layout.register_coordinates(static_cast<int>(r));
        Coordinates at{};
        for (std::size_t a = 0; a < static_cast<std::size_t>(narrow.rank()); ++a) {
            if (narrow[static_cast<int>(a)] != 1) at[a] = full[first + a];
        }
        const std::string position = fmt::format("static_cast<i64>({})", names[places.at(at)]);
        if (bounded) condition[r] = fmt::format("static_cast<u64>({}) < {}", position, extent);
        offset[r] = times_stride(position);
    }
}

void ThreadPrinter::load(const Instruction& made) {
    const ArrayAccess access(p_, made);
    if (made.has("into")) return load_into(access);
    const Value result = made.result();
    const Layout& layout = this->layout(result);
    const AccessText text = access_text(access, layout);
    if (const Names& words = names_.words(result); !words.empty()) {
        line("uint4 {} = {{}};", fmt::join(words, " = {}, "));
        for (std::size_t i = 0; i < words.size(); ++i) {
            const std::size_t r = i * static_cast<std::size_t>(text.vector);
            line("{}load_raw({}, {});", where(text.inside[r]), text.address[r], words[i]);
        }
        return;
    }
    const std::string type = register_type(dtype(result));
    const std::string zero = access.other ? "" : literal(dtype(result), 0);
    const Names* const outside = access.other ? &registers(access.other) : nullptr;
    const auto other = [&](std::size_t r) -> const std::string& {
        return outside == nullptr ? zero : (*outside)[outside->size() == 1 ? 0 : r];
    };
    const Names& names = registers(result);
    const auto vector = static_cast<std::size_t>(text.vector);
    for (std::size_t r = 0; r < names.size(); r += vector) {
        const std::span group = std::span(names).subspan(r, vector);
        const std::string &address = text.address[r], &inside = text.inside[r];
        bool same = true;
        for (std::size_t i = 1; i < vector; ++i) same &= other(r + i) == other(r);
        if (inside.empty()) {
            line("{} {};", type, fmt::join(group, ", "));
            line("load_vector({}, {});", address, fmt::join(group, ", "));
        } else if (!text.window.empty() && same) {
            // The window may end inside a vector; other conditions hold for all of it.
            line("{} {};", type, fmt::join(group, ", "));
            line("load_vector_part({}, {} ? {}.left({}) : 0, {}, {});", address, text.beside[r],
                 text.window, text.position[r], other(r), fmt::join(group, ", "));
        } else if (!text.window.empty() || (!same && vector > 1)) {
            for (std::size_t i = 0; i < vector; ++i) {
                line("{0} {1} = {2}; if ({3}) load_vector({4} + {5}, {1});", type, group[i],
                     other(r + i), text.inside[r + i], address, i);
            }
        } else {
            Names declarations;
            for (std::size_t i = 0; i < vector; ++i) {
                declarations.push_back(fmt::format("{} = {}", group[i], other(r + i)));
            }
            line("{} {};", type, fmt::join(declarations, ", "));
            line("if ({}) load_vector({}, {});", inside, address, fmt::join(group, ", "));
        }
    }
}

void ThreadPrinter::load_into(const ArrayAccess& access) {
    const Value variables = access.values[0];
    AccessText text = access_text(access, layout(variables));
    const bool in_words = !names_.words(variables).empty();
    const Names& names = in_words ? names_.words(variables) : registers(variables);
    const auto vector = static_cast<std::size_t>(text.vector), step = in_words ? 1 : vector;
    // Otherwise a scalar is waited for at once, where it moves to a register that a warp shares.
    if (!p_.is_tile(variables)) text.address[0] += " + ptx::lane_zero()";
    for (std::size_t i = 0; i < names.size(); i += step) {
        const std::size_t r = i / step * vector;
        const std::span group = std::span(names).subspan(i, step);
        if (!text.inside[r].empty()) line("{} = {{}};", fmt::join(group, " = "));
        line("{}{}({}, {});", where(text.inside[r]), in_words ? "load_raw" : "load_vector",
             text.address[r], fmt::join(group, ", "));
    }
}

void ThreadPrinter::store(const Instruction& made) {
    const ArrayAccess access(p_, made);
    const Value value = access.values[0];
    const Layout& layout = this->layout(value);
    store_vectors(access_text(access, layout), layout, registers(value));
}

void ThreadPrinter::store_vectors(const AccessText& text, const Layout& layout,
                                  const Names& names) {
    const std::string own = owner(layout);
    const auto vector = static_cast<std::size_t>(text.vector);
    for (std::size_t r = 0; r < names.size(); r += vector) {
        const std::span group = std::span(names).subspan(r, vector);
        if (!text.window.empty()) {
            line("if ({}) store_vector_part({}, {}.left({}), {});", both(own, text.beside[r]),
                 text.address[r], text.window, text.position[r], fmt::join(group, ", "));
        } else {
            line("{}store_vector({}, {});", where(both(own, text.inside[r])), text.address[r],
                 fmt::join(group, ", "));
        }
    }
}

void ThreadPrinter::atomic(const Instruction& made) {
    const ArrayAccess access(p_, made);
    const Value result = made.result();
    const Layout& layout = this->layout(result);
    const AccessText text = access_text(access, layout);
    const std::string own = owner(layout);
    const Names& names = registers(result);
    line("{} {} = {{}};", register_type(dtype(result)), fmt::join(names, " = {}, "));
    // Neighbours under one condition share one branch: the compiler does not merge branches.
    std::string open;
    const auto close = [&] {
        if (open.empty()) return;
        --depth_;
        line("}}");
    };
    for (std::size_t r = 0; r < names.size(); ++r) {
        const std::string condition = both(own, text.inside[r]);
        if (condition != open) {
            close();
            if (!condition.empty()) {
                line("if ({}) {{", condition);
                ++depth_;
            }
            open = condition;
        }
        std::string arguments = text.address[r];
        for (const Value value : access.values) arguments += ", " + registers(value)[r];
        line("{} = {}({});", names[r], ir::name(made.tile), arguments);
    }
    close();
}

void ThreadPrinter::targets(const Instruction& made) {
    const Value result = made.result();
    const Layout& layout = this->layout(result);
    AccessText& text = targets_[result] = access_text(ArrayAccess(p_, made), layout);
    const std::string &buffer = made.symbol("writes"), base = pointer(buffer);
    line("auto* const {} = reinterpret_cast<u64*>(memory + {});", base, buffer);
    const std::string own = owner(layout);
    for (int r = 0; r < layout.registers(); ++r) {
        const auto at = static_cast<std::size_t>(r);
        const std::string& inside = text.inside[at];
        line("{}{}[{}] = {} ? reinterpret_cast<u64>({}) : 0;",
             where(both(own, positions_.inside(layout, r))), base,
             row_major(layout, r, layout.shape), inside.empty() ? "true" : "(" + inside + ")",
             text.address[at]);
    }
}

// Where several elements have one address, the last one in row-major order is stored: every thread
// looks through the later ones.
void ThreadPrinter::last_writers(const Instruction& made) {
    const Value result = made.result();
    const Layout& layout = this->layout(result);
    const AccessText& text = targets_.at(made.operands[0]);
    const std::string base = pointer(made.symbol("reads")), own = owner(layout);
    const Names& names = registers(result);
    for (int r = 0; r < layout.registers(); ++r) {
        const auto at = static_cast<std::size_t>(r);
        const std::string inside = both(both(own, positions_.inside(layout, r)), text.inside[at]);
        line("bool {} = {};", names[at], inside.empty() ? "true" : inside);
        line("if ({0}) for (int i = ({1}) + 1; i < {2} && {0}; ++i) {0} = {3}[i] != {3}[({1})];",
             names[at], row_major(layout, r, layout.shape), layout.shape.size(), base);
    }
}

void ThreadPrinter::store_targets(const Instruction& made) {
    const Value value = made.operands.at(2);
    AccessText text = targets_.at(made.operands.at(0));
    text.inside = text.beside = registers(made.operands.at(1));
    store_vectors(text, layout(value), registers(value));
}

}  // namespace tilewright::cuda::schedule
