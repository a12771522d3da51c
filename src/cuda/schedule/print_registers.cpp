// Values in registers: from lane to lane, and through shared memory.
#include <fmt/ranges.h>

#include <span>
#include <unordered_set>

#include "cuda/codegen/element_text.h"
#include "cuda/schedule/thread_printer.h"

namespace tilewright::cuda::schedule {
namespace {

/// `count` names from the given one on.
std::string joined(const Names& names, int first, int count) {
    return fmt::format("{}", fmt::join(std::span(names).subspan(first, count), ", "));
}

/// Has any thread a register's element inside of these bounds? For each axis: have all of them?
bool is_within(const Layout& layout, int reg, int warps, const std::vector<std::int64_t>& bounds,
               std::vector<bool>& always) {
    const Coordinates at = layout.register_coordinates(reg);
    bool any = false;
    always.assign(bounds.size() / 2, true);
    for (int thread = 0; thread < 32 * warps; ++thread) {
        const Coordinates part = layout.thread_coordinates(thread % 32, thread / 32);
        bool all = true;
        for (std::size_t axis = 0; axis < always.size(); ++axis) {
            const std::int64_t place = at[axis] + part[axis];
            const bool inside = place >= bounds[2 * axis] && place < bounds[2 * axis + 1];
            if (!inside) all = always[axis] = false;
        }
        any |= all;
    }
    return any;
}

}  // namespace

void ThreadPrinter::elementwise(const Instruction& made) {
    const Value result = made.result();
    const DType in = dtype(made.operands[made.tile == ir::Op::select ? 1 : 0]), out = dtype(result);
    const bool approx = made.has("approx"), rounds = is_rounded(made.tile, out);
    const std::string type = register_type(out), storage = storage_type(out);
    const Names& names = registers(result);
    Names x(made.operands.size());
    for (std::size_t r = 0; r < names.size(); ++r) {
        if (!names_.is_computed(result, static_cast<int>(r))) continue;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const Names& operand = registers(made.operands[i]);
            x[i] = operand[p_.is_tile(made.operands[i]) ? r : 0];
        }
        const std::string text = element_text(made.tile, approx, in, out, x);
        if (rounds) {
            line("const {} {} = rounded({}{{}}, {});", type, names[r], storage, text);
        } else {
            line("const {} {} = {};", type, names[r], text);
        }
    }
}

void ThreadPrinter::declare(const Instruction& made) {
    const std::string type = register_type(dtype(made.result()));
    const Names& names = registers(made.result());
    if (made.has("zero")) {
        const Names& words = names_.words(made.result());
        const bool in_words = !words.empty();
        return line("{} {} = {{}};", in_words ? "uint4" : type,
                    fmt::join(in_words ? words : names, " = {}, "));
    }
    if (made.operands.empty()) return line("{} {};", type, fmt::join(names, ", "));
    const Names& from = registers(made.operands[0]);
    for (std::size_t r = 0; r < names.size(); ++r) line("{} {} = {};", type, names[r], from[r]);
}

void ThreadPrinter::copy(const Instruction& made) {
    const Value source = made.operands[0], result = made.result();
    const bool in_words = !names_.words(source).empty();
    const Names &from = in_words ? names_.words(source) : registers(source),
                &names = in_words ? names_.words(result) : registers(result);
    const std::string type = in_words ? "uint4" : register_type(dtype(result));
    for (std::size_t r = 0; r < names.size(); ++r)
        line("const {} {} = {};", type, names[r], from[r]);
}

void ThreadPrinter::assign(const Instruction& made) {
    const std::size_t count = made.operands.size() / 2;
    std::unordered_set<std::string> assigned;
    for (std::size_t i = 0; i < count; ++i) {
        const Names& names = registers(made.operands[i]);
        assigned.insert(names.begin(), names.end());
    }
    // An element that is itself a variable of these is read before that is assigned. Where the text
    // of an element is an expression, that is of constants, of what was loaded or of the thread.
    std::vector<std::pair<const std::string*, std::string>> moves;
    for (std::size_t i = 0; i < count; ++i) {
        const Names &names = registers(made.operands[i]),
                    &from = registers(made.operands[count + i]);
        const std::string type = register_type(dtype(made.operands[i]));
        for (std::size_t r = 0; r < names.size(); ++r) {
            if (from[r] == names[r]) continue;
            moves.emplace_back(&names[r], from[r]);
            if (!assigned.contains(from[r])) continue;
            moves.back().second = fmt::format("y{}", copies_++);
            line("const {} {} = {};", type, moves.back().second, from[r]);
        }
    }
    for (const auto& [name, value] : moves) line("{} = {};", *name, value);
}

void ThreadPrinter::shuffle(const Instruction& made) {
    const Value source = made.operands[0], result = made.result();
    const Layout &from = layout(source), &to = layout(result);
    const Conversion how = conversion(from, to);
    line("// shuffle from {} to {}", from.to_string(), to.to_string());
    Names terms;
    for (std::size_t bit = 0; bit < how.lane_map.size(); ++bit) {
        if (how.lane_map[bit] == 0) continue;
        terms.push_back(fmt::format("((lane >> {} & 1) * {})", bit, how.lane_map[bit]));
    }
    const std::string& base = p_.value_name(result);
    line("const int {}_lane = {};", base,
         terms.empty() ? "0" : fmt::format("{}", fmt::join(terms, " ^ ")));
    const bool choose = how.select_lanes != 0;
    if (choose) line("const bool {}_odd = __popc(lane & {}) & 1;", base, how.select_lanes);
    const std::string type = register_type(dtype(result));
    const bool small = size_of(dtype(result)) < 4 && !is_float(dtype(result));
    const Names& names = registers(result);
    const Names& elements = registers(source);
    for (std::size_t r = 0; r < names.size(); ++r) {
        const auto shuffled = [&](int at) {
            return small
                       ? fmt::format("__shfl_sync(0xffffffffu, static_cast<int>({}), {}_lane ^ {})",
                                     elements[at], base, how.flip[r])
                       : fmt::format("__shfl_sync(0xffffffffu, {}, {}_lane ^ {})", elements[at],
                                     base, how.flip[r]);
        };
        if (!choose) {
            line("const {} {} = {};", type, names[r], shuffled(how.source[r]));
        } else {
            line("const {0} {1}a = {2}, {1}b = {3};", type, names[r], shuffled(how.source[r]),
                 shuffled(how.alternative[r]));
            line("const {0} {1} = {2}_odd ? {1}b : {1}a;", type, names[r], base);
        }
    }
}

std::string ThreadPrinter::place(const Instruction& made, const Layout& of, int reg,
                                 std::size_t part) {
    const Coordinates at = of.register_coordinates(reg);
    const int rank = of.shape.rank();
    if (const std::int64_t pitch = made.number("pitch"); pitch != 0) {
        std::string thread;
        std::int64_t constant = 0, stride = pitch;
        for (int axis = rank - 1; axis >= 0; --axis) {
            const std::int64_t by = axis == rank - 1 ? 1 : stride;
            constant += at[axis] * by;
            const std::string position = positions_.thread(of, axis);
            if (position != "0") {
                if (!thread.empty()) thread += " + ";
                thread += by == 1 ? position : fmt::format("{} * {}", position, by);
            }
            if (axis != rank - 1) stride *= cover(of.shape[axis]).size();
        }
        return fmt::format("{}{}{}", thread, thread.empty() ? "" : " + ", constant);
    }
    const std::vector<std::int64_t>&extents = made.list("extents"), &starts = made.list("starts"),
          &steps = made.list("steps");
    std::string text = "0";
    for (int axis = 0; axis < rank; ++axis) {
        const std::int64_t start = starts.empty() ? 0 : starts[part * rank + axis];
        const std::string position =
            steps.empty() ? positions_.of(of, axis, at[axis] + start)
                          : fmt::format("({} * {} + {})", positions_.of(of, axis, at[axis]),
                                        steps[axis], start);
        text = axis == 0 ? position : fmt::format("({}) * {} + {}", text, extents[axis], position);
    }
    return text;
}

std::string ThreadPrinter::row_major(const Layout& of, int reg, const ir::Shape& extents,
                                     int without) {
    const Coordinates at = of.register_coordinates(reg);
    std::string text = "0";
    for (int axis = 0; axis < extents.rank(); ++axis) {
        if (axis == without) continue;
        text = fmt::format("({}) * {} + {}", text, extents[axis],
                           positions_.of(of, axis, at[static_cast<std::size_t>(axis)]));
    }
    return text;
}

void ThreadPrinter::write_tile(const Instruction& made) {
    const std::string& buffer = made.symbol("writes");
    const std::string storage = storage_type(dtype_in_memory(p_, made, made.operands[0]));
    const std::string base = pointer(buffer);
    const int vector = static_cast<int>(made.number("vector", 1));
    const std::vector<std::int64_t>& bounds = made.list("within");
    std::vector<bool> always;
    line("auto* const {} = reinterpret_cast<{}*>(memory + {});", base, storage, buffer);
    for (std::size_t part = 0; part < made.operands.size(); ++part) {
        const Layout& from = layout(made.operands[part]);
        const Names& elements = registers(made.operands[part]);
        const std::string own = owner(from);
        for (int r = 0; r < from.registers(); r += vector) {
            std::string inside = made.has("guarded") ? both(own, positions_.inside(from, r)) : own;
            if (!bounds.empty()) {
                if (!is_within(from, r, p_.warps(), bounds, always)) continue;
                for (std::size_t axis = 0; axis < always.size(); ++axis) {
                    if (always[axis]) continue;
                    const std::string position = positions_.of(from, static_cast<int>(axis),
                                                               from.register_coordinates(r)[axis]);
                    inside = both(inside, fmt::format("{0} >= {1} && {0} < {2}", position,
                                                      bounds[2 * axis], bounds[2 * axis + 1]));
                }
            }
            line("{}store_vector<{}>({} + ({}), {});", where(inside), storage, base,
                 place(made, from, r, part), joined(elements, r, vector));
        }
    }
}

void ThreadPrinter::read_tile(const Instruction& made) {
    const Value result = made.result();
    const Layout& to = layout(result);
    const std::string base = pointer(made.symbol("reads")), type = register_type(dtype(result));
    const int vector = static_cast<int>(made.number("vector", 1));
    const Names& names = registers(result);
    for (int r = 0; r < to.registers(); r += vector) {
        const std::string inside = made.has("guarded") ? positions_.inside(to, r) : "";
        const std::string group = joined(names, r, vector);
        line("{} {}{};", type, group, inside.empty() ? "" : " = {}");
        line("{}load_vector({} + ({}), {});", where(inside), base, place(made, to, r, 0), group);
    }
}

}  // namespace tilewright::cuda::schedule
