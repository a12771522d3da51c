// Scans with a function of the user's, on tuples of values: by each thread, between lanes, between
// warps. Nothing is neutral, so that text says where something precedes an element.
#include "cuda/codegen/element_text.h"
#include "cuda/schedule/combine_text.h"
#include "cuda/schedule/scan_lines.h"
#include "cuda/schedule/thread_printer.h"

namespace tilewright::cuda::schedule {

/// Such a scan, whose variables are named after its first result, `base`.
struct ThreadPrinter::CombineScan {
    CombineScan(const ThreadPrinter& printer, const Instruction& made,
                std::span<const Value> values)
        : layout(printer.layout(values[0])),
          base(printer.p_.value_name(values[0])),
          axis(static_cast<int>(made.number("axis"))),
          reverse(made.has("reverse")),
          has_totals(made.has("totals")),
          lanes(count_along(layout, layout.lane, axis)),
          warps(count_along(layout, layout.warp, axis)),
          lines(lines_of_scan(layout, made)) {
        for (const Value value : values) {
            dtypes.push_back(printer.dtype(value));
            types.push_back(register_type(dtypes.back()));
        }
        for (std::size_t i = 0, line = 0, part = 0; i < lines.size(); ++i, ++part) {
            if (lines[i].begins) part = 0, line += i == 0 ? 0 : 1;
            carries.push_back(fmt::format("{}_{}_carry", base, line));
            names.push_back(fmt::format("{}_{}_{}", base, line, part));
        }
    }
    std::size_t size() const { return types.size(); }
    /// One variable for each value of the tuple.
    Names each(const std::string& name) const {
        Names result;
        for (std::size_t k = 0; k < size(); ++k) result.push_back(fmt::format("{}{}", name, k));
        return result;
    }
    /// Combines what comes before with the variables of what comes after.
    std::string combine(const Names& before, const Names& after) const {
        return fmt::format("{}_combine({}, {});", base, fmt::join(before, ", "),
                           fmt::join(after, ", "));
    }
    /// Does a line have elements past the end of the axis before its others?
    bool begins_outside(std::size_t line) const {
        return reverse && lines[line].begins && layout.has_phantoms(axis);
    }
    std::int64_t coordinate(int reg) const {
        return layout.register_coordinates(reg)[static_cast<std::size_t>(axis)];
    }
    /// How far apart the elements of neighbouring lanes or warps are.
    std::int64_t step(const std::vector<std::uint64_t>& bases) const {
        return layout.unpack(bases[0])[static_cast<std::size_t>(axis)];
    }
    bool is_carried(std::size_t line) const {
        return has_totals || (line + 1 < lines.size() && !lines[line + 1].begins);
    }
    std::size_t end_of_run(std::size_t line) const {
        std::size_t end = line + 1;
        while (end < lines.size() && lines[end].follows) ++end;
        return end;
    }

    const Layout& layout;
    std::string base;
    int axis;
    bool reverse, has_totals;
    int lanes, warps;  ///< bits of their numbers along the axis, the lowest ones
    std::vector<ScanLine> lines;
    std::vector<DType> dtypes;
    Names types;           ///< by value
    Names carries, names;  ///< by line
};

void ThreadPrinter::combining_function(const Instruction& made, const CombineScan& scan) {
    const Block& body = made.blocks[0];
    std::string parameters;
    Names after;
    for (std::size_t i = 0; i < body.arguments.size(); ++i) {
        const Value argument = body.arguments[i];
        names_.define(argument);
        const std::string& name = registers(argument).front();
        const bool changes = i >= scan.size();
        if (changes) after.push_back(name);
        parameters += fmt::format("{}{}{}{} {}", i == 0 ? "" : ", ", changes ? "" : "const ",
                                  register_type(dtype(argument)), changes ? "&" : "", name);
    }
    line("const auto {}_combine = [&]({}) {{", scan.base, parameters);
    ++depth_;
    for (const Value argument : body.arguments) {
        line("static_cast<void>({});", registers(argument).front());
    }
    for (const Instruction& inner : body.body) {
        if (!inner.is(ir::Op::yield)) {
            instruction(inner);
            continue;
        }
        const Names results = scan.each(scan.base + "_y");
        for (std::size_t k = 0; k < scan.size(); ++k) {
            line("const {} {} = {};", scan.types[k], results[k],
                 registers(inner.operands[k]).front());
        }
        for (std::size_t k = 0; k < scan.size(); ++k) line("{} = {};", after[k], results[k]);
    }
    --depth_;
    line("}};");
}

void ThreadPrinter::combine_lanes(const CombineScan& scan, std::size_t line_index,
                                  const std::vector<Names>& elements,
                                  const std::vector<Names>& sums, bool parts) {
    const std::string &p = scan.names[line_index], &base = scan.base;
    const auto at = [&](const std::vector<Names>& of, int reg) {
        Names result;
        for (const Names& names : of) result.push_back(names[static_cast<std::size_t>(reg)]);
        return result;
    };
    const bool outside = scan.begins_outside(line_index);
    const auto position = [&](int reg) {
        return positions_.of(scan.layout, scan.axis, scan.coordinate(reg));
    };
    const std::int64_t extent = scan.layout.shape[scan.axis];
    int last = -1;
    for (const int r : scan.lines[line_index].registers) {
        for (std::size_t k = 0; k < scan.size(); ++k) {
            line("{} {} = {};", scan.types[k], sums[k][static_cast<std::size_t>(r)],
                 elements[k][static_cast<std::size_t>(r)]);
        }
        if (last >= 0) {
            line("{}{}", outside ? where(fmt::format("{} < {}", position(last), extent)) : "",
                 scan.combine(at(sums, last), at(sums, r)));
        }
        last = r;
    }
    // `before`: what precedes this thread's registers in this repeat, if `has` is true.
    const Names before = scan.each(p + "_before"), sum = scan.each(p + "_sum"),
                total = scan.each(p + "_total"), up = scan.each("up");
    if (scan.lanes == 0) {
        for (std::size_t k = 0; k < scan.size(); ++k) {
            line("{} {} = {};", scan.types[k], before[k], sums[k][static_cast<std::size_t>(last)]);
        }
        return line("bool {}_has = false;", p);
    }
    for (std::size_t k = 0; k < scan.size(); ++k) {
        line("{} {} = {};", scan.types[k], sum[k], sums[k][static_cast<std::size_t>(last)]);
    }
    const char* const sign = scan.reverse ? "+" : "-";
    const auto from_lane = [&](std::size_t k, const std::string& lane) {
        return shuffled("__shfl_sync", scan.dtypes[k], sum[k], lane);
    };
    /// Does the lane that is `distance` before this one have something?
    const auto precedes = [&](int distance) {
        return both(fmt::format("{}_lane >= {}", base, distance),
                    outside ? fmt::format("{} + {} < {}", position(last),
                                          distance * scan.step(scan.layout.lane), extent)
                            : "");
    };
    for (int bit = 0; bit < scan.lanes; ++bit) {
        const int distance = 1 << bit;
        line("{{");
        ++depth_;
        for (std::size_t k = 0; k < scan.size(); ++k) {
            line("const {} {} = {};", scan.types[k], up[k],
                 from_lane(k, fmt::format("lane {} {}", sign, distance)));
        }
        line("{}{}", where(precedes(distance)), scan.combine(up, sum));
        --depth_;
        line("}}");
    }
    for (std::size_t k = 0; k < scan.size(); ++k) {
        line("{} {} = {};", scan.types[k], before[k], from_lane(k, fmt::format("lane {} 1", sign)));
    }
    line("bool {}_has = {};", p, precedes(1));
    if (!parts && !scan.is_carried(line_index)) return;
    const int mask = (1 << scan.lanes) - 1;
    for (std::size_t k = 0; k < scan.size(); ++k) {
        line("const {} {} = {};", scan.types[k], total[k],
             from_lane(k, scan.reverse ? fmt::format("lane & {}", 31 & ~mask)
                                       : fmt::format("lane | {}", mask)));
    }
}

void ThreadPrinter::precede(const CombineScan& scan, std::size_t line_index, const Names& earlier) {
    const std::string& p = scan.names[line_index];
    const Names before = scan.each(p + "_before");
    line("if ({}_has) {{", p);
    ++depth_;
    line("{}", scan.combine(earlier, before));
    --depth_;
    line("}} else {{");
    ++depth_;
    for (std::size_t k = 0; k < scan.size(); ++k) line("{} = {};", before[k], earlier[k]);
    --depth_;
    line("}}");
    line("{}_has = true;", p);
}

void ThreadPrinter::finish_combined(const CombineScan& scan, std::size_t line_index,
                                    const std::vector<Names>& sums, std::span<const Value> results,
                                    const Names& total) {
    const std::string& p = scan.names[line_index];
    const std::vector<int>& members = scan.lines[line_index].registers;
    const bool begins = scan.lines[line_index].first;
    const Names carry = scan.each(scan.carries[line_index]);
    if (!begins) precede(scan, line_index, carry);
    for (const int r : members) {
        for (std::size_t k = 0; k < scan.size(); ++k) {
            line("{} {} = {};", scan.types[k], registers(results[k])[static_cast<std::size_t>(r)],
                 sums[k][static_cast<std::size_t>(r)]);
        }
    }
    line("if ({}_has) {{", p);
    ++depth_;
    for (const int r : members) {
        Names element;
        for (const Value result : results) {
            element.push_back(registers(result)[static_cast<std::size_t>(r)]);
        }
        line("{}", scan.combine(scan.each(p + "_before"), element));
    }
    --depth_;
    line("}}");
    if (!scan.is_carried(line_index) || total.empty()) return;
    const Names next = begins ? carry : scan.each(p + "_next");
    for (std::size_t k = 0; k < scan.size(); ++k) {
        line("{} {} = {};", scan.types[k], next[k], total[k]);
    }
    if (begins) return;
    line("{}", scan.combine(carry, next));
    for (std::size_t k = 0; k < scan.size(); ++k) line("{} = {};", carry[k], next[k]);
}

/// The last elements that a thread has of a line.
Names ThreadPrinter::total_of(const CombineScan& scan, std::size_t line_index,
                              const std::vector<Names>& sums) {
    if (scan.lanes > 0) return scan.each(scan.names[line_index] + "_total");
    Names result;
    const auto last = static_cast<std::size_t>(scan.lines[line_index].registers.back());
    for (const Names& names : sums) result.push_back(names[last]);
    return result;
}

void ThreadPrinter::combine_scan(const Instruction& made) {
    const std::span<const Value> results(made.results.data(), made.operands.size());
    const CombineScan scan(*this, made, results);
    combining_function(made, scan);
    number_threads(scan.base, scan.reverse, scan.lanes, scan.warps);
    const bool parts = made.has("parts");
    std::vector<Names> elements, sums;
    for (std::size_t k = 0; k < scan.size(); ++k) {
        elements.push_back(registers(made.operands[k]));
        sums.push_back(
            parts ? registers(results[k])
                  : numbered(fmt::format("{}_s{}", scan.base, k), scan.layout.registers()));
    }
    for (std::size_t i = 0; i < scan.lines.size(); ++i) {
        combine_lanes(scan, i, elements, sums, parts);
        if (!parts) finish_combined(scan, i, sums, results, total_of(scan, i, sums));
    }
    combined_totals(scan, made);
}

void ThreadPrinter::combined_totals(const CombineScan& scan, const Instruction& made) {
    for (std::size_t k = 0; made.has("totals") && k < scan.size(); ++k) {
        Names carries;
        for (const std::string& carry : scan.carries)
            carries.push_back(fmt::format("{}{}", carry, k));
        totals(scan.lines, scan.axis, scan.layout, made.results[scan.size() + k], carries);
    }
}

void ThreadPrinter::write_combined(const Instruction& made) {
    const CombineScan scan(*this, made, made.operands);
    std::vector<Names> parts;
    for (const Value value : made.operands) parts.push_back(registers(value));
    for (std::size_t i = 0, run = 0; i < scan.lines.size(); ++i) {
        if (scan.lines[i].follows) continue;
        const std::size_t end = scan.end_of_run(i);
        Names total = total_of(scan, i, parts);
        if (end > i + 1) {
            const Names of_run = scan.each(scan.names[i] + "_run"), next = scan.each("next");
            for (std::size_t k = 0; k < scan.size(); ++k)
                line("{} {} = {};", scan.types[k], of_run[k], total[k]);
            for (std::size_t j = i + 1; j < end; ++j) {
                precede(scan, j, of_run);
                const Names more = total_of(scan, j, parts);
                line("{{");
                ++depth_;
                for (std::size_t k = 0; k < scan.size(); ++k)
                    line("{} {} = {};", scan.types[k], next[k], more[k]);
                line("{}", scan.combine(of_run, next));
                for (std::size_t k = 0; k < scan.size(); ++k) line("{} = {};", of_run[k], next[k]);
                --depth_;
                line("}}");
            }
            total = of_run;
        }
        for (std::size_t k = 0; k < scan.size(); ++k) {
            write_total(nth_symbol(made, "writes", static_cast<int>(k)), run,
                        fmt::format("{}_m{}", scan.names[i], k), scan.types[k], total[k]);
        }
        ++run;
    }
}

void ThreadPrinter::join_combined(const Instruction& made) {
    const CombineScan scan(*this, made, made.operands);
    std::vector<Names> parts;
    for (const Value value : made.operands) parts.push_back(registers(value));
    const int last = (1 << scan.warps) - 1;
    for (std::size_t i = 0; i < scan.lines.size(); ++i) {
        if (scan.lines[i].follows) continue;
        const std::string& p = scan.names[i];
        const std::size_t end = scan.end_of_run(i);
        // The first warp that has elements inside the axis.
        int start = 0;
        if (scan.begins_outside(i)) {
            const std::int64_t lowest = scan.coordinate(scan.lines[i].registers.back());
            while (start < last && lowest + (last - start) * scan.step(scan.layout.warp) >=
                                       scan.layout.shape[scan.axis])
                ++start;
        }
        const Names all = scan.each(p + "_all"), earlier = scan.each(p + "_warps"),
                    next = scan.each("next"), up = scan.each("up");
        const auto total = [&](std::size_t k, const std::string& w) {
            return total_of_warp(fmt::format("{}_m{}", p, k), scan.types[k], last, w);
        };
        const auto nth_warp = [&](int w) { return fmt::format("{}", scan.reverse ? last - w : w); };
        const int each = (last + 1) / 32;  // totals of a lane
        const bool in_turn = each > 1;
        const bool across = joins_in_lanes(scan.lanes, scan.warps) && !in_turn;
        const bool carried = scan.is_carried(end - 1);
        if (in_turn) join_in_lanes(scan, i, each, start, carried, total);
        for (std::size_t k = 0; !in_turn && k < scan.size(); ++k) {
            line("{} {} = {};", scan.types[k], all[k],
                 total(k, across ? total_of_lane(last, scan.reverse) : nth_warp(start)));
            if (!across) line("{} {} = {};", scan.types[k], earlier[k], all[k]);
        }
        for (int bit = 0; across && bit < scan.warps; ++bit) {
            const int distance = 1 << bit;
            line("{{");
            ++depth_;
            for (std::size_t k = 0; k < scan.size(); ++k) {
                line("const {} {} = {};", scan.types[k], up[k],
                     shuffled("__shfl_sync", scan.dtypes[k], all[k],
                              fmt::format("lane - {}", distance)));
            }
            line("if ((lane & {}) >= {}) {}", last, start + distance, scan.combine(up, all));
            --depth_;
            line("}}");
        }
        for (std::size_t k = 0; across && k < scan.size(); ++k) {
            line("{} {} = {};", scan.types[k], earlier[k],
                 shuffled("__shfl_sync", scan.dtypes[k], all[k],
                          fmt::format("{}_warp - 1", scan.base)));
        }
        for (std::size_t k = 0; across && carried && k < scan.size(); ++k) {
            line("{} = {};", all[k],
                 shuffled("__shfl_sync", scan.dtypes[k], all[k], fmt::format("{}", last)));
        }
        for (int w = start + 1; !across && !in_turn && w <= last; ++w) {
            if (w == last && !carried) break;
            line("{{");
            ++depth_;
            for (std::size_t k = 0; k < scan.size(); ++k) {
                line("{} {} = {};", scan.types[k], next[k], total(k, nth_warp(w)));
            }
            line("{}", scan.combine(all, next));
            for (std::size_t k = 0; k < scan.size(); ++k) {
                line("{} = {};", all[k], next[k]);
                if (w < last) line("if ({}_warp > {}) {} = {};", scan.base, w, earlier[k], all[k]);
            }
            --depth_;
            line("}}");
        }
        line("if ({}_warp > {}) {{", scan.base, start);
        ++depth_;
        for (std::size_t j = i; j < end; ++j) precede(scan, j, earlier);
        --depth_;
        line("}}");
        for (std::size_t j = i; j < end; ++j) {
            finish_combined(scan, j, parts, std::span(made.results).first(scan.size()),
                            j + 1 == end ? all : Names());
        }
    }
    combined_totals(scan, made);
    if (p_.blocks > 1) line("turn ^= 1;");
}

void ThreadPrinter::join_in_lanes(
    const CombineScan& scan, std::size_t line_index, int each, int start, bool carried,
    const std::function<std::string(std::size_t, const std::string&)>& total) {
    const std::string& p = scan.names[line_index];
    const Names all = scan.each(p + "_all"), earlier = scan.each(p + "_warps"),
                next = scan.each("next"), up = scan.each("up");
    const int last = 32 * each - 1;
    const auto declare = [&](const Names& names, const std::string& n) {
        for (std::size_t k = 0; k < scan.size(); ++k) {
            line("{} {} = {};", scan.types[k], names[k],
                 total(k, scan.reverse ? fmt::format("{} - ({})", last, n) : n));
        }
    };
    const auto assign = [&](const Names& to, const Names& from) {
        for (std::size_t k = 0; k < scan.size(); ++k) line("{} = {};", to[k], from[k]);
    };
    const auto from_lane = [&](std::size_t k, const std::string& lane) {
        return shuffled("__shfl_sync", scan.dtypes[k], all[k], lane);
    };
    declare(all, fmt::format("lane * {}", each));
    for (int i = 1; i < each; ++i) {
        const std::string n = fmt::format("lane * {} + {}", each, i);
        line("{{");
        ++depth_;
        declare(next, n);
        line("{}{}", start > 0 ? where(fmt::format("{} > {}", n, start)) : "",
             scan.combine(all, next));
        assign(all, next);
        --depth_;
        line("}}");
    }
    for (int bit = 0; bit < 5; ++bit) {
        const int distance = 1 << bit;
        line("{{");
        ++depth_;
        for (std::size_t k = 0; k < scan.size(); ++k) {
            line("const {} {} = {};", scan.types[k], up[k],
                 from_lane(k, fmt::format("lane - {}", distance)));
        }
        line("if (lane >= {}) {}", distance + start / each, scan.combine(up, all));
        --depth_;
        line("}}");
    }
    for (std::size_t k = 0; k < scan.size(); ++k) {
        line("{} {} = {};", scan.types[k], earlier[k],
             from_lane(k, fmt::format("{}_warp / {} - 1", scan.base, each)));
    }
    line("bool {}_begun = {}_warp / {} > {};", p, scan.base, each, start / each);
    for (int i = 0; i + 1 < each; ++i) {
        const std::string n = fmt::format("({}_warp & {}) + {}", scan.base, last & ~(each - 1), i);
        line("if (({}_warp & {}) > {}{}) {{", scan.base, each - 1, i,
             start > 0 ? fmt::format(" && {} >= {}", n, start) : "");
        ++depth_;
        declare(next, n);
        line("if ({}_begun) {}", p, scan.combine(earlier, next));
        assign(earlier, next);
        line("{}_begun = true;", p);
        --depth_;
        line("}}");
    }
    for (std::size_t k = 0; carried && k < scan.size(); ++k) {
        line("{} = {};", all[k], from_lane(k, "31"));
    }
}

}  // namespace tilewright::cuda::schedule
