// Reductions, scans and printing: operations across registers, lanes and warps.
#include "cuda/codegen/lower_lanes.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "cuda/codegen/lower_ahead.h"
#include "cuda/codegen/lower_values.h"
#include "ir/evaluate.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Reduction;
using ir::Value;

namespace {

std::string combined(Reduction kind, DType dtype, const std::string& a, const std::string& b) {
    const bool floats = is_float(dtype);
    switch (kind) {
        case Reduction::sum:
            return floats ? fmt::format("{} + {}", a, b) : fmt::format("ops::add({}, {})", a, b);
        case Reduction::prod:
            return floats ? fmt::format("{} * {}", a, b) : fmt::format("ops::mul({}, {})", a, b);
        case Reduction::max:
        case Reduction::any:
            return dtype == DType::boolean ? fmt::format("{} || {}", a, b)
                                           : fmt::format("ops::max({}, {})", a, b);
        case Reduction::logsumexp:
            return fmt::format("ops::log_add_exp({}, {})", a, b);
        default:
            return dtype == DType::boolean ? fmt::format("{} && {}", a, b)
                                           : fmt::format("ops::min({}, {})", a, b);
    }
}

bool is_extreme_index(Reduction kind) {
    return kind == Reduction::argmax || kind == Reduction::argmin;
}

std::uint64_t neutral(Reduction kind, DType dtype) {
    if (kind == Reduction::argmax) return ir::identity(Reduction::max, dtype);
    if (kind == Reduction::argmin) return ir::identity(Reduction::min, dtype);
    return ir::identity(kind, dtype);
}

/// Shuffles move words: smaller integers are shuffled as int.
std::string shuffled(const char* instruction, DType dtype, const std::string& value,
                     const std::string& lane) {
    const bool small = !is_float(dtype) && size_of(dtype) < 4;
    return fmt::format("{}(0xffffffffu, {}, {})", instruction,
                       small ? fmt::format("static_cast<int>({})", value) : value, lane);
}

/// Combines b into a; both are variables "x" and, for indices, "xi".
void fold_into(Lowering& cx, const Instruction& reduce, const std::string& a,
               const std::string& b) {
    const Reduction kind = reduce.get<ir::ReduceAttributes>().kind;
    if (!is_extreme_index(kind)) {
        cx.line("{} = {};", a, combined(kind, cx.type(reduce.operands[0]).dtype, a, b));
        return;
    }
    cx.line("if (ops::replaces_extreme<{4}>({0}, {1}, {2}, {3})) {0} = {2}, {1} = {3};", a, a + "i",
            b, b + "i", kind == Reduction::argmax);
}

void hold_reduced(Lowering& cx, const Instruction& reduce, const Layout& layout,
                  const Names& sums) {
    const DType out = cx.type(reduce.result()).dtype;
    Names result;
    for (const std::string& sum : sums) {
        if (is_extreme_index(reduce.get<ir::ReduceAttributes>().kind)) {
            result.push_back(sum + "i");
        } else if (is_float(out) && size_of(out) <= 2) {
            result.push_back(sum + "r");
            cx.line("const f32 {} = rounded({}{{}}, {});", result.back(), storage_type(out), sum);
        } else {
            result.push_back(sum);
        }
    }
    cx.hold(reduce.result(), layout, result);
}

bool is_deferred(const Lowering& cx, const Instruction& sum) {
    return std::any_of(cx.plan.sums.begin(), cx.plan.sums.end(), [&](const auto& loop) {
        return std::find(loop.second.begin(), loop.second.end(), &sum) != loop.second.end();
    });
}

}  // namespace

void lower_reduce(Lowering& cx, const Instruction& made) {
    const auto& attributes = made.get<ir::ReduceAttributes>();
    const Reduction kind = attributes.kind;
    const int axis = attributes.axis;
    const Value source = made.operands[0];
    const DType dtype = cx.type(source).dtype;
    const bool indices = is_extreme_index(kind);
    const Held* known = !is_deferred(cx, made) ? cx.find(source) : nullptr;
    const Layout from = known != nullptr ? known->layout : cx.home(source);
    const Names elements = elements_of(cx, source, from);
    const Layout to = from.without(axis);
    const std::string value_type = register_type(dtype);
    const std::string base = fmt::format("v{}", made.result().id);

    const auto fold = [&](const std::string& a, const std::string& b) {
        fold_into(cx, made, a, b);
    };
    // In the thread: by pairs, for a short chain of dependences.
    std::map<int, std::vector<int>> groups;
    for (int r = 0; r < from.registers(); ++r) {
        const Coordinates at = from.register_coordinates(r);
        Coordinates rest{};
        for (int a = 0, next = 0; a < from.shape.rank(); ++a) {
            if (a != axis) rest[next++] = at[a];
        }
        groups[to.find_register(rest)].push_back(r);
    }
    Names sums(static_cast<std::size_t>(to.registers()));
    for (const auto& [target, members] : groups) {
        Names parts;
        for (int r : members) {
            const std::size_t at = r;
            std::string element = elements[at];
            const std::string position =
                cx.coordinate(from, axis, from.register_coordinates(r)[axis]);
            if (from.has_phantoms(axis)) {
                element = fmt::format("{} < {} ? {} : {}", position, from.shape[axis], element,
                                      literal(dtype, neutral(kind, dtype)));
            }
            if (!indices) {
                parts.push_back(from.has_phantoms(axis) ? "(" + element + ")" : element);
                continue;
            }
            const std::string name = fmt::format("{}p{}", base, r);
            cx.line("{} {} = {};", value_type, name, element);
            cx.line("int {}i = {};", name,
                    from.has_phantoms(axis)
                        ? fmt::format("{0} < {1} ? {0} : 2147483647", position, from.shape[axis])
                        : position);
            parts.push_back(name);
        }
        for (int level = 0; parts.size() > 1; ++level) {
            Names next;
            for (std::size_t i = 0; i + 1 < parts.size(); i += 2) {
                if (indices) {
                    fold(parts[i], parts[i + 1]);
                    next.push_back(parts[i]);
                } else {
                    next.push_back(fmt::format("{}t{}_{}_{}", base, target, level, i / 2));
                    cx.line("const {} {} = {};", value_type, next.back(),
                            combined(kind, dtype, parts[i], parts[i + 1]));
                }
            }
            if (parts.size() % 2 != 0) next.push_back(parts.back());
            parts = std::move(next);
        }
        std::string& sum = sums[target];
        sum = to.registers() == 1 ? base + "a" : fmt::format("{}a{}", base, target);
        cx.line("{} {} = {};", value_type, sum, parts.front());
        if (indices) cx.line("int {}i = {}i;", sum, parts.front());
    }
    // Between the lanes of a warp.
    const bool deferred = is_deferred(cx, made);
    for (std::size_t bit = 0; bit < from.lane.size() && !deferred; ++bit) {
        if (from.unpack(from.lane[bit])[axis] == 0) continue;
        const std::string mask = fmt::format("{}", 1 << bit);
        for (const std::string& sum : sums) {
            const std::string other = fmt::format("{}l{}", sum, bit);
            cx.line("const {} {} = {};", value_type, other,
                    shuffled("__shfl_xor_sync", dtype, sum, mask));
            if (indices) {
                cx.line("const int {}i = __shfl_xor_sync(0xffffffffu, {}i, {});", other, sum, mask);
            }
            fold(sum, other);
        }
    }
    // Between warps.
    std::vector<int> warp_bits;
    for (std::size_t bit = 0; bit < from.warp.size(); ++bit) {
        if (from.unpack(from.warp[bit])[axis] != 0) {
            warp_bits.push_back(static_cast<int>(bit));
        }
    }
    if (!warp_bits.empty()) {
        std::int64_t size = 1;
        for (std::int64_t extent : to.shape.dims()) size *= cover(extent).size();
        const std::int64_t copies = std::int64_t{1} << warp_bits.size();
        const int stride = std::max(size_of(dtype), 4);  // narrow floats as f32
        const int values = cx.buffer(copies * size * (dtype == DType::f64 ? 8 : stride));
        const int places = indices ? cx.buffer(copies * size * 4) : -1;
        cx.access_shared("writes", {values});
        if (indices) cx.access_shared("writes", {places});
        cx.line("auto* const {}m = reinterpret_cast<{}*>(memory + {});", base, value_type,
                buffer_name(values));
        if (indices) {
            cx.line("auto* const {}mi = reinterpret_cast<int*>(memory + {});", base,
                    buffer_name(places));
        }
        std::string part;
        unsigned axis_warps = 0;
        for (std::size_t i = 0; i < warp_bits.size(); ++i) {
            part +=
                fmt::format("{}(warp >> {} & 1) * {}", i == 0 ? "" : " + ", warp_bits[i], 1 << i);
            axis_warps |= 1U << warp_bits[i];
        }
        std::string own;
        if (const unsigned lanes = to.copied_lanes()) own = fmt::format("(lane & {}) == 0", lanes);
        if (const unsigned warps = to.copied_warps() & ~axis_warps) {
            own += fmt::format("{}(warp & {}) == 0", own.empty() ? "" : " && ", warps);
        }
        const auto place = [&](int r) {
            std::string text = "0";
            const Coordinates at = to.register_coordinates(r);
            for (int a = 0; a < to.shape.rank(); ++a) {
                text = fmt::format("({}) * {} + {}", text, cover(to.shape[a]).size(),
                                   cx.coordinate(to, a, at[a]));
            }
            return text;
        };
        for (int r = 0; r < to.registers(); ++r) {
            const std::string& sum = sums[r];
            const std::string slot = fmt::format("({}) * {} + {}", part, size, place(r));
            cx.line("{}{}m[{}] = {};", own.empty() ? "" : fmt::format("if ({}) ", own), base, slot,
                    sum);
            if (indices) {
                cx.line("{}{}mi[{}] = {}i;", own.empty() ? "" : fmt::format("if ({}) ", own), base,
                        slot, sum);
            }
        }
        WarpParts parts{&made, to, sums, {}, values, places, copies, size};
        for (int r = 0; r < to.registers(); ++r) parts.offsets.push_back(place(r));
        keep_packed(cx);
        // Read where the result is needed: earlier reductions share the barrier.
        cx.unread.push_back(std::move(parts));
        if (indices) read_warp_parts(cx);
        return;
    }
    hold_reduced(cx, made, to, sums);
}

void read_warp_parts(Lowering& cx) {
    const std::vector<WarpParts> all = std::exchange(cx.unread, {});
    for (const WarpParts& parts : all) {
        cx.access_shared("reads", {parts.values});
        if (parts.indices >= 0) cx.access_shared("reads", {parts.indices});
    }
    for (const WarpParts& parts : all) {
        const std::string value_type = register_type(cx.type(parts.reduce->operands[0]).dtype);
        const std::string base = fmt::format("v{}", parts.reduce->result().id);
        for (std::size_t r = 0; r < parts.sums.size(); ++r) {
            const std::string &sum = parts.sums[r], &at = parts.offsets[r];
            cx.line("{} = {}m[{}];", sum, base, at);
            if (parts.indices >= 0) cx.line("{}i = {}mi[{}];", sum, base, at);
            Names copies = {sum};
            for (std::int64_t copy = 1; copy < parts.copies; ++copy) {
                copies.push_back(fmt::format("{}w{}", sum, copy));
                const std::int64_t from = copy * parts.size;
                cx.line("{} {} = {}m[{} + {}];", value_type, copies.back(), base, from, at);
                if (parts.indices >= 0) {
                    cx.line("int {}i = {}mi[{} + {}];", copies.back(), base, from, at);
                }
            }
            // By pairs: a chain would wait for each result.
            for (std::size_t step = 1; step < copies.size(); step *= 2) {
                for (std::size_t i = 0; i + step < copies.size(); i += 2 * step) {
                    fold_into(cx, *parts.reduce, copies[i], copies[i + step]);
                }
            }
        }
        hold_reduced(cx, *parts.reduce, parts.layout, parts.sums);
    }
}

void join_lanes(Lowering& cx, const Instruction& made, const Names& names) {
    const Layout from = cx.home(made.operands[0]);
    const std::size_t axis = made.get<ir::ReduceAttributes>().axis;
    for (std::size_t bit = 0; bit < from.lane.size(); ++bit) {
        if (from.unpack(from.lane[bit])[axis] == 0) continue;
        for (const std::string& name : names) {
            cx.line("{0} += __shfl_xor_sync(0xffffffffu, {0}, {1});", name, 1 << bit);
        }
    }
}

void lower_scan(Lowering& cx, const Instruction& made) {
    const auto& attributes = made.get<ir::ReduceAttributes>();
    const Reduction kind = attributes.kind;
    const int axis = attributes.axis;
    const DType dtype = cx.type(made.result()).dtype;
    const Layout layout = scan_layout(cx.facts, made);
    const Names elements = elements_of(cx, made.operands[0], layout);
    const std::string value_type = register_type(dtype),
                      base = fmt::format("v{}", made.result().id);
    const std::string zero = literal(dtype, neutral(kind, dtype));
    const std::size_t a = axis;
    // scan_layout has put the axis into the lowest bits of registers, lanes and warps.
    int lanes = 0, warps = 0;
    for (std::uint64_t basis : layout.lane) lanes += layout.unpack(basis)[a] != 0 ? 1 : 0;
    for (std::uint64_t basis : layout.warp) warps += layout.unpack(basis)[a] != 0 ? 1 : 0;
    const auto joined = [&](const std::string& before, const std::string& after) {
        return combined(kind, dtype, before, after);
    };
    const bool reverse = attributes.reverse;
    const char* const sign = reverse ? "+" : "-";
    if (lanes > 0) {
        const std::string at = fmt::format("(lane & {})", (1 << lanes) - 1);
        cx.line("const int {}_lane = {};", base,
                reverse ? fmt::format("{} - {}", (1 << lanes) - 1, at) : at);
    }
    if (warps > 0) {
        const std::string at = fmt::format("(warp & {})", (1 << warps) - 1);
        cx.line("const int {}_warp = {};", base,
                reverse ? fmt::format("{} - {}", (1 << warps) - 1, at) : at);
    }
    // Lines of the scan: registers that differ only along the axis, in its order.
    std::map<Coordinates, std::map<std::int64_t, int>> lines;
    for (int r = 0; r < layout.registers(); ++r) {
        Coordinates at = layout.register_coordinates(r);
        const std::int64_t along = reverse ? -at[a] : at[a];
        at[a] = 0;
        lines[at][along] = r;
    }
    const std::int64_t run = std::int64_t{1} << cover(layout.shape[axis]).bits;
    const Held results = cx.variables(base, layout, dtype);
    const Names names = cx.names(results);
    int count = 0;
    for (const auto& [rest, members] : lines) {
        const std::string l = fmt::format("{}_{}", base, count++);
        cx.line("{} {}_carry = {};", value_type, l, zero);
        std::vector<std::vector<int>> repeats;
        std::int64_t last = INT64_MIN;
        for (const auto& [along, r] : members) {
            const std::int64_t repeat = layout.register_coordinates(r)[a] / run;
            if (repeat != last) repeats.emplace_back();
            repeats.back().push_back(r);
            last = repeat;
        }
        for (std::size_t part = 0; part < repeats.size(); ++part) {
            const std::string p = fmt::format("{}_{}", l, part);
            std::string running;
            Names inclusive;
            for (std::size_t i = 0; i < repeats[part].size(); ++i) {
                const int r = repeats[part][i];
                std::string element = elements[r];
                if (layout.has_phantoms(axis)) {
                    element =
                        fmt::format("({} < {} ? {} : {})",
                                    cx.coordinate(layout, axis, layout.register_coordinates(r)[a]),
                                    layout.shape[axis], element, zero);
                }
                const std::string name = fmt::format("{}_s{}", p, i);
                cx.line("const {} {} = {};", value_type, name,
                        running.empty() ? element : joined(running, element));
                running = name;
                inclusive.push_back(name);
            }
            // `before`: everything in this repeat that precedes this thread's registers.
            cx.line("{} {}_before = {};", value_type, p, zero);
            std::string total = running;
            if (lanes > 0) {
                cx.line("{} {}_sum = {};", value_type, p, running);
                for (int bit = 0; bit < lanes; ++bit) {
                    cx.line("{{ const {0} up = {1}; if ({2}_lane >= {3}) {4}_sum = {5}; }}",
                            value_type,
                            shuffled("__shfl_sync", dtype, p + "_sum",
                                     fmt::format("lane {} {}", sign, 1 << bit)),
                            base, 1 << bit, p, joined("up", p + "_sum"));
                }
                cx.line("{{ const {0} up = {1}; if ({2}_lane > 0) {3}_before = up; }}", value_type,
                        shuffled("__shfl_sync", dtype, p + "_sum", fmt::format("lane {} 1", sign)),
                        base, p);
                const std::string end = reverse ? fmt::format("lane & {}", 31 & ~((1 << lanes) - 1))
                                                : fmt::format("lane | {}", (1 << lanes) - 1);
                cx.line("const {} {}_total = {};", value_type, p,
                        shuffled("__shfl_sync", dtype, p + "_sum", end));
                total = p + "_total";
            }
            if (warps > 0) {
                // One slot for each warp and lane.
                const int id = cx.buffer(std::int64_t{32} * cx.warps * 8);
                cx.access_shared("writes", {id});
                cx.line("auto* const {}_m = reinterpret_cast<{}*>(memory + {});", p, value_type,
                        buffer_name(id));
                cx.line("{}_m[warp * 32 + lane] = {};", p, total);
                cx.access_shared("reads", {id});
                const std::string first = fmt::format("(warp & {})", 31 & ~((1 << warps) - 1));
                cx.line("{0} {1}_all = {2}, {1}_warps = {2};", value_type, p, zero);
                for (int w = 0; w < 1 << warps; ++w) {
                    cx.line("if ({0}_warp == {1}) {2}_warps = {2}_all;", base, w, p);
                    cx.line("{0}_all = {1};", p,
                            joined(p + "_all", fmt::format("{}_m[({} + {}) * 32 + lane]", p, first,
                                                           reverse ? (1 << warps) - 1 - w : w)));
                }
                cx.line("{0}_before = {1};", p, joined(p + "_warps", p + "_before"));
                total = p + "_all";
            }
            cx.line("{0}_before = {1};", p, joined(l + "_carry", p + "_before"));
            for (std::size_t i = 0; i < repeats[part].size(); ++i) {
                const int r = repeats[part][i];
                std::string value = joined(p + "_before", inclusive[i]);
                if (attributes.exclusive) {
                    value = i == 0 ? p + "_before" : joined(p + "_before", inclusive[i - 1]);
                }
                if (is_float(dtype) && size_of(dtype) <= 2) {
                    value = fmt::format("rounded({}{{}}, {})", storage_type(dtype), value);
                }
                cx.line("const {} {} = {};", value_type, names[r], value);
            }
            cx.line("{0}_carry = {1};", l, joined(l + "_carry", total));
        }
    }
    cx.hold(made.result(), results);
}

void lower_print(Lowering& cx, const Instruction& made) {
    const std::string& text = made.get<ir::TextAttributes>().text;
    // Text with %-conversions for printf; each {} becomes an operand.
    std::vector<std::string> pieces(1);
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text.compare(i, 2, "{}") == 0 && pieces.size() <= made.operands.size()) {
            pieces.emplace_back();
            ++i;
            continue;
        }
        const char c = text[i];
        if (c == '%')
            pieces.back() += "%%";
        else if (c == '"' || c == '\\')
            pieces.back() += std::string("\\") + c;
        else if (c == '\n')
            pieces.back() += "\\n";
        else
            pieces.back() += c;
    }
    const auto conversion_of = [](DType dtype) {
        if (is_float(dtype)) return "%g";
        return is_signed(dtype) ? "%lld" : "%llu";
    };
    const auto as_argument = [](DType dtype, const std::string& value) {
        return fmt::format("static_cast<{}>({})",
                           is_float(dtype)    ? "double"
                           : is_signed(dtype) ? "i64"
                                              : "u64",
                           value);
    };
    // Thread 0 prints: it reads every tile through shared memory.
    const auto print = [&](const std::string& piece, const std::string& arguments) {
        if (!piece.empty()) cx.line("if (threadIdx.x == 0) printf(\"{}\"{});", piece, arguments);
    };
    print(pieces[0], "");
    for (std::size_t i = 0; i < made.operands.size(); ++i) {
        const Value operand = made.operands[i];
        const DType dtype = cx.type(operand).dtype;
        const ir::Shape& shape = cx.type(operand).shape;
        if (shape.rank() == 0) {
            print(conversion_of(dtype), ", " + as_argument(dtype, scalar_text(cx, operand)));
        } else {
            const Held* known = cx.find(operand);
            const Layout from = known != nullptr ? known->layout : cx.home(operand);
            const Names names = elements_of(cx, operand, from);
            const int id = cx.buffer(std::max<std::int64_t>(shape.size(), 1) * 8);
            const std::string base = cx.fresh("d");
            cx.access_shared("writes", {id});
            cx.line("auto* const {} = reinterpret_cast<{}*>(memory + {});", base,
                    register_type(dtype), buffer_name(id));
            for (int r = 0; r < from.registers(); ++r) {
                const Coordinates at = from.register_coordinates(r);
                std::string place = "0";
                for (int axis = 0; axis < shape.rank(); ++axis) {
                    place = fmt::format("({}) * {} + {}", place, shape[axis],
                                        cx.coordinate(from, axis, at[axis]));
                }
                const std::string inside = cx.positions.inside(from, r);
                cx.line("{}{}[{}] = {};", inside.empty() ? "" : fmt::format("if ({}) ", inside),
                        base, place, names[r]);
            }
            cx.access_shared("reads", {id});
            print("[", "");
            cx.line(
                "if (threadIdx.x == 0) for (int i = 0; i < {}; ++i) printf(i == 0 ? \"{}\" : \", "
                "{}\", "
                "{});",
                shape.size(), conversion_of(dtype), conversion_of(dtype),
                as_argument(dtype, base + "[i]"));
            print("]", "");
        }
        if (i + 1 < pieces.size()) print(pieces[i + 1], "");
    }
    print("\\n", "");
}

}  // namespace tilewright::cuda
