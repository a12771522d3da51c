// Reductions: across registers, lanes and warps.
#include <bit>
#include <map>

#include "cuda/codegen/element_text.h"
#include "cuda/schedule/combine_text.h"
#include "cuda/schedule/thread_printer.h"

namespace tilewright::cuda::schedule {
using ir::Reduction;

namespace {

/// The register of the result of a reduction along `axis` to which element `reg` of the operand
/// belongs.
int register_without(const Layout& from, int axis, const Layout& to, int reg) {
    const Coordinates at = from.register_coordinates(reg);
    Coordinates rest{};
    for (int a = 0, next = 0; a < from.shape.rank(); ++a) {
        if (a != axis) rest[next++] = at[a];
    }
    return to.find_register(rest);
}

/// Copies of a reduction's results, one of each combination of the warps that it spans.
struct WarpParts {
    WarpParts(const Instruction& made, const Layout& layout)
        : bits(made.list("warps")), size(covered(layout.shape).size()) {}
    std::int64_t copies() const { return std::int64_t{1} << bits.size(); }
    std::string number() const {
        std::string text;
        for (std::size_t i = 0; i < bits.size(); ++i) {
            text += fmt::format("{}(warp >> {} & 1) * {}", i == 0 ? "" : " + ", bits[i], 1 << i);
        }
        return text;
    }
    /// One of the threads that hold a copy each.
    std::string owner(const Layout& layout) const {
        unsigned across = 0;
        for (const std::int64_t bit : bits) across |= 1U << bit;
        std::string own;
        if (const unsigned lanes = layout.copied_lanes()) {
            own = fmt::format("(lane & {}) == 0", lanes);
        }
        if (const unsigned warps = layout.copied_warps() & ~across) {
            own = both(own, fmt::format("(warp & {}) == 0", warps));
        }
        return own;
    }

    const std::vector<std::int64_t>& bits;
    std::int64_t size;  ///< of a copy, in elements
};

}  // namespace

void ThreadPrinter::fold(Reduction kind, DType of, const std::string& a, const std::string& b,
                         const std::string& a_index, const std::string& b_index) {
    if (!gives_index(kind)) return line("{} = {};", a, combined(kind, of, a, b));
    line("if (ops::replaces_extreme<{4}>({0}, {1}, {2}, {3})) {0} = {2}, {1} = {3};", a, a_index, b,
         b_index, kind == Reduction::argmax);
}

void ThreadPrinter::reduce(const Instruction& made) {
    const Reduction kind = reduction_of(made);
    const bool indices = gives_index(kind), phantoms = has_phantoms(made);
    const int axis = static_cast<int>(made.number("axis"));
    const Value source = made.operands[0], result = made.results[0];
    const Layout &from = layout(source), &to = layout(result);
    const DType element_dtype = dtype(source);
    const std::string type = register_type(element_dtype), &base = p_.value_name(result);
    const Names &elements = registers(source), &sums = registers(result);
    // In the thread: by pairs, for a short chain of dependences.
    std::vector<std::vector<int>> groups(sums.size());
    for (int r = 0; r < from.registers(); ++r) {
        groups[register_without(from, axis, to, r)].push_back(r);
    }
    for (std::size_t target = 0; target < groups.size(); ++target) {
        Names parts;
        for (const int r : groups[target]) {
            std::string element = elements[r], position;
            if (indices || phantoms) {
                position = positions_.of(from, axis, from.register_coordinates(r)[axis]);
            }
            if (phantoms) {
                element = fmt::format("{} < {} ? {} : {}", position, from.shape[axis], element,
                                      neutral(kind, element_dtype));
            }
            if (!indices) {
                parts.push_back(phantoms ? "(" + element + ")" : std::move(element));
                continue;
            }
            const std::string& name = parts.emplace_back(fmt::format("{}p{}", base, r));
            line("{} {} = {};", type, name, element);
            line("int {}i = {};", name,
                 phantoms ? fmt::format("{0} < {1} ? {0} : 2147483647", position, from.shape[axis])
                          : position);
        }
        for (int level = 0; parts.size() > 1; ++level) {
            Names next;
            for (std::size_t i = 0; i + 1 < parts.size(); i += 2) {
                if (indices) {
                    fold(kind, element_dtype, parts[i], parts[i + 1], parts[i] + "i",
                         parts[i + 1] + "i");
                    next.push_back(std::move(parts[i]));
                } else {
                    next.push_back(fmt::format("{}t{}_{}_{}", base, target, level, i / 2));
                    line("const {} {} = {};", type, next.back(),
                         combined(kind, element_dtype, parts[i], parts[i + 1]));
                }
            }
            if (parts.size() % 2 != 0) next.push_back(std::move(parts.back()));
            parts = std::move(next);
        }
        line("{} {} = {};", type, sums[target], parts.front());
        if (indices) line("int {} = {}i;", registers(made.results[1])[target], parts.front());
    }
    if (made.has("partial")) return;
    for (std::size_t bit = 0; bit < from.lane.size(); ++bit) {
        if (from.unpack(from.lane[bit])[axis] == 0) continue;
        const std::string mask = fmt::format("{}", 1 << bit);
        for (std::size_t r = 0; r < sums.size(); ++r) {
            const std::string other = fmt::format("{}l{}", sums[r], bit);
            line("const {} {} = {};", type, other,
                 shuffled("__shfl_xor_sync", element_dtype, sums[r], mask));
            std::string index;
            if (indices) {
                index = registers(made.results[1])[r];
                line("const int {}i = __shfl_xor_sync(0xffffffffu, {}, {});", other, index, mask);
            }
            fold(kind, element_dtype, sums[r], other, index, indices ? other + "i" : "");
        }
    }
}

void ThreadPrinter::write_parts(const Instruction& made) {
    const Layout& of = layout(made.operands[0]);
    const WarpParts parts(made, of);
    for (std::size_t i = 0; i < made.operands.size(); ++i) {
        line("auto* const {}m = reinterpret_cast<{}*>(memory + {});",
             p_.value_name(made.operands[i]), register_type(dtype(made.operands[i])),
             nth_symbol(made, "writes", static_cast<int>(i)));
    }
    const std::string own = where(parts.owner(of)), number = parts.number();
    for (int r = 0; r < of.registers(); ++r) {
        const std::string slot =
            fmt::format("({}) * {} + {}", number, parts.size, row_major(of, r, covered(of.shape)));
        for (const Value value : made.operands) {
            line("{}{}m[{}] = {};", own, p_.value_name(value), slot, registers(value)[r]);
        }
    }
}

void ThreadPrinter::join_parts(const Instruction& made) {
    const Reduction kind = reduction_of(made);
    const Layout& of = layout(made.operands[0]);
    const DType element_dtype = dtype(made.operands[0]);
    const WarpParts parts(made, of);
    for (int r = 0; r < of.registers(); ++r) {
        const std::string at = row_major(of, r, covered(of.shape));
        std::vector<Names> copies;  // of the value, and of the index
        for (const Value value : made.operands) {
            copies.push_back({registers(value)[r]});
            line("{} = {}m[{}];", copies.back().front(), p_.value_name(value), at);
        }
        for (std::int64_t copy = 1; copy < parts.copies(); ++copy) {
            for (std::size_t i = 0; i < copies.size(); ++i) {
                const Value value = made.operands[i];
                copies[i].push_back(fmt::format("{}w{}", copies[i].front(), copy));
                line("{} {} = {}m[{} + {}];", i == 0 ? register_type(dtype(value)) : "int",
                     copies[i].back(), p_.value_name(value), copy * parts.size, at);
            }
        }
        // By pairs: a chain would wait for each result.
        for (std::size_t step = 1; step < copies[0].size(); step *= 2) {
            for (std::size_t i = 0; i + step < copies[0].size(); i += 2 * step) {
                const bool indices = copies.size() > 1;
                fold(kind, element_dtype, copies[0][i], copies[0][i + step],
                     indices ? copies[1][i] : "", indices ? copies[1][i + step] : "");
            }
        }
    }
}

void ThreadPrinter::join_lanes(const Instruction& made) {
    const auto lanes = static_cast<unsigned>(made.number("lanes"));
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
        for (const std::string& name : registers(made.operands[0])) {
            line("{0} += __shfl_xor_sync(0xffffffffu, {0}, {1});", name,
                 1 << std::countr_zero(rest));
        }
    }
}

void ThreadPrinter::clear(const Instruction& made) {
    for (const std::string& name : registers(made.operands[0])) {
        line("if ((lane & {}) != 0) {} = {};", made.number("lanes"), name,
             literal(dtype(made.operands[0]), 0));
    }
}

void ThreadPrinter::narrow(const Instruction& made) {
    const Value result = made.result();
    const Names& from = registers(made.operands[0]);
    for (std::size_t r = 0; r < from.size(); ++r) {
        line("const f32 {} = rounded({}{{}}, {});", registers(result)[r],
             storage_type(dtype(result)), from[r]);
    }
}

}  // namespace tilewright::cuda::schedule
