// Scans: by each thread, between lanes, between warps.
#include <algorithm>

#include "cuda/codegen/element_text.h"
#include "cuda/schedule/combine_text.h"
#include "cuda/schedule/scan_lines.h"
#include "cuda/schedule/thread_printer.h"

namespace tilewright::cuda::schedule {

/// A scan whose variables are named after the value `base`.
struct ThreadPrinter::Scan {
    Scan(const Instruction& made, const Layout& of, DType dtype, std::string named)
        : layout(of),
          base(std::move(named)),
          axis(static_cast<int>(made.number("axis"))),
          kind(reduction_of(made)),
          element(dtype),
          reverse(made.has("reverse")),
          exclusive(made.has("exclusive")),
          lanes(count_along(of, of.lane, axis)),
          warps(count_along(of, of.warp, axis)),
          zero(neutral(kind, dtype)),
          type(register_type(dtype)),
          lines(lines_of_scan(of, made)) {
        for (std::size_t i = 0, line = 0, part = 0; i < lines.size(); ++i, ++part) {
            if (lines[i].begins) part = 0, line += i == 0 ? 0 : 1;
            carries.push_back(fmt::format("{}_{}_carry", base, line));
            names.push_back(fmt::format("{}_{}_{}", base, line, part));
        }
    }
    std::string joined(const std::string& before, const std::string& after) const {
        return combined(kind, element, before, after);
    }
    std::size_t end_of_run(std::size_t line) const {
        std::size_t end = line + 1;
        while (end < lines.size() && lines[end].follows) ++end;
        return end;
    }
    std::string from_lane(std::size_t line, const std::string& lane) const {
        return shuffled("__shfl_sync", element, names[line] + "_sum", lane);
    }

    const Layout& layout;
    std::string base;
    int axis;
    ir::Reduction kind;
    DType element;  ///< in which elements are added up
    bool reverse, exclusive;
    int lanes, warps;  ///< bits of their numbers along the axis, the lowest ones
    std::string zero, type;
    std::vector<ScanLine> lines;
    Names carries, names;  ///< by line
};

void ThreadPrinter::scan_lanes(const Scan& scan, std::size_t line_index, const Names& elements,
                               const Names& sums) {
    const std::string &p = scan.names[line_index], &base = scan.base;
    const char* const sign = scan.reverse ? "+" : "-";
    if (scan.lines[line_index].begins) {
        line("{} {} = {};", scan.type, scan.carries[line_index], scan.zero);
    }
    const std::string* running = nullptr;
    for (const int r : scan.lines[line_index].registers) {
        std::string element = elements[r];
        if (scan.layout.has_phantoms(scan.axis)) {
            element = fmt::format("({} < {} ? {} : {})",
                                  positions_.of(scan.layout, scan.axis,
                                                scan.layout.register_coordinates(r)[scan.axis]),
                                  scan.layout.shape[scan.axis], element, scan.zero);
        }
        line("const {} {} = {};", scan.type, sums[r],
             running == nullptr ? element : scan.joined(*running, element));
        running = &sums[r];
    }
    // `before`: everything in this repeat that precedes this thread's registers.
    line("{} {}_before = {};", scan.type, p, scan.zero);
    if (scan.lanes == 0) return;
    line("{} {}_sum = {};", scan.type, p, *running);
    for (int bit = 0; bit < scan.lanes; ++bit) {
        line("{{ const {0} up = {1}; if ({2}_lane >= {3}) {4}_sum = {5}; }}", scan.type,
             scan.from_lane(line_index, fmt::format("lane {} {}", sign, 1 << bit)), base, 1 << bit,
             p, scan.joined("up", p + "_sum"));
    }
    line("{{ const {0} up = {1}; if ({2}_lane > 0) {3}_before = up; }}", scan.type,
         scan.from_lane(line_index, fmt::format("lane {} 1", sign)), base, p);
    const int mask = (1 << scan.lanes) - 1;
    line("const {} {}_total = {};", scan.type, p,
         scan.from_lane(line_index, scan.reverse ? fmt::format("lane & {}", 31 & ~mask)
                                                 : fmt::format("lane | {}", mask)));
}

void ThreadPrinter::finish_line(const Scan& scan, std::size_t line_index, const Names& sums,
                                Value result, std::string total) {
    const std::string &p = scan.names[line_index], &carry = scan.carries[line_index];
    const std::vector<int>& members = scan.lines[line_index].registers;
    line("{0}_before = {1};", p, scan.joined(carry, p + "_before"));
    const DType out = dtype(result);
    for (std::size_t i = 0; i < members.size(); ++i) {
        std::string value =
            scan.exclusive && i == 0
                ? p + "_before"
                : scan.joined(p + "_before", sums[members[scan.exclusive ? i - 1 : i]]);
        if (combined_dtype(out) != out) {
            value = fmt::format("rounded({}{{}}, {})", storage_type(out), value);
        }
        line("const {} {} = {};", scan.type, registers(result)[members[i]], value);
    }
    if (!total.empty()) line("{0} = {1};", carry, scan.joined(carry, total));
}

void ThreadPrinter::totals(const std::vector<ScanLine>& lines, int axis, const Layout& of,
                           Value result, const Names& carries) {
    const DType out = dtype(result);
    for (std::size_t i = 0; i < lines.size(); ++i) {
        if (!lines[i].begins) continue;
        Coordinates at = of.register_coordinates(lines[i].registers.front());
        at[static_cast<std::size_t>(axis)] = 0;
        const int reg = layout(result).find_register(at);
        std::string value = carries[i];
        if (combined_dtype(out) != out) {
            value = fmt::format("rounded({}{{}}, {})", storage_type(out), value);
        }
        line("const {} {} = {};", register_type(out),
             registers(result)[static_cast<std::size_t>(reg)], value);
    }
}

void ThreadPrinter::number_threads(const std::string& base, bool reverse, int lane_bits,
                                   int warp_bits) {
    const auto number = [&](const char* of, int bits) {
        const int last = (1 << bits) - 1;
        const std::string at = fmt::format("({} & {})", of, last);
        line("const int {}_{} = {};", base, of, reverse ? fmt::format("{} - {}", last, at) : at);
    };
    if (lane_bits > 0) number("lane", lane_bits);
    if (warp_bits > 0) number("warp", warp_bits);
}

void ThreadPrinter::scan(const Instruction& made) {
    const Value result = made.result();
    const DType out = dtype(result);
    const bool is_narrow = combined_dtype(out) != out;
    const Scan scan(made, layout(result), is_narrow ? DType::f32 : out, p_.value_name(result));
    number_threads(scan.base, scan.reverse, scan.lanes, scan.warps);
    const bool parts = made.has("parts");
    const Names& elements = registers(made.operands[0]);
    const Names sums =
        parts ? registers(result) : numbered(scan.base + "_s", scan.layout.registers());
    for (std::size_t i = 0; i < scan.lines.size(); ++i) {
        scan_lanes(scan, i, elements, sums);
        if (parts) continue;
        finish_line(
            scan, i, sums, result,
            scan.lanes > 0 ? scan.names[i] + "_total" : sums[scan.lines[i].registers.back()]);
    }
    if (made.has("totals"))
        totals(scan.lines, scan.axis, scan.layout, made.results[1], scan.carries);
}

void ThreadPrinter::write_total(const std::string& buffer, std::size_t line_index,
                                const std::string& memory, const std::string& type,
                                const std::string& total) {
    const std::int64_t bytes = (p_.blocks > 1 ? 1 : 32) * p_.warps() * kScanSlot;
    const std::string from =
        line_index == 0
            ? buffer
            : fmt::format("{} + {}", buffer, static_cast<std::int64_t>(line_index) * bytes);
    if (p_.blocks == 1) {
        line("auto* const {} = reinterpret_cast<{}*>(memory + {});", memory, type, from);
        return line("{}[warp * 32 + lane] = {};", memory, total);
    }
    line("u64* const {} = reinterpret_cast<u64*>(memory + {} + turn * {});", memory, from,
         p_.buffer(buffer).slot_bytes() / 2);
    line("if (lane < {}) send({} + warp, lane, {});", p_.blocks, memory, total);
}

std::string ThreadPrinter::total_of_warp(const std::string& memory, const std::string& type,
                                         int last, const std::string& nth) const {
    const std::string warp =
        fmt::format("(warp & {}) + {}", std::max(31, p_.warps() - 1) & ~last, nth);
    return p_.blocks == 1 ? fmt::format("{}[({}) * 32 + lane]", memory, warp)
                          : fmt::format("received<{}>({}[{}])", type, memory, warp);
}

void ThreadPrinter::write_totals(const Instruction& made) {
    if (made.has("combine")) return write_combined(made);
    const Value parts = made.operands[0];
    const Scan scan(made, layout(parts), dtype(parts), p_.value_name(parts));
    for (std::size_t i = 0, run = 0; i < scan.lines.size(); ++i) {
        const std::string& p = scan.names[i];
        const std::string total =
            scan.lanes > 0 ? p + "_total" : registers(parts)[scan.lines[i].registers.back()];
        if (scan.lines[i].follows) continue;
        const std::size_t end = scan.end_of_run(i);
        if (end > i + 1) line("{} {}_run = {};", scan.type, p, total);
        for (std::size_t j = i + 1; j < end; ++j) {
            const std::string& q = scan.names[j];
            line("{0}_before = {1};", q, scan.joined(p + "_run", q + "_before"));
            line("{0}_run = {1};", p, scan.joined(p + "_run", q + "_total"));
        }
        write_total(made.symbol("writes"), run++, p + "_m", scan.type,
                    end > i + 1 ? p + "_run" : total);
    }
}

void ThreadPrinter::join_totals(const Instruction& made) {
    if (made.has("combine")) return join_combined(made);
    const Value parts = made.operands[0];
    const Scan scan(made, layout(parts), dtype(parts), p_.value_name(parts));
    const int last = (1 << scan.warps) - 1;
    for (std::size_t i = 0; i < scan.lines.size(); ++i) {
        if (scan.lines[i].follows) continue;
        const std::string& p = scan.names[i];
        const std::size_t end = scan.end_of_run(i);
        const auto total = [&](const std::string& w) {
            return total_of_warp(p + "_m", scan.type, last, w);
        };
        if (const int each = (last + 1) / 32; each > 1) {
            join_in_lanes(scan, p, each, total);
        } else if (joins_in_lanes(scan.lanes, scan.warps)) {
            const std::string all = p + "_all";
            const auto from = [&](const std::string& lane) {
                return shuffled("__shfl_sync", scan.element, all, lane);
            };
            line("{} {} = {};", scan.type, all, total(total_of_lane(last, scan.reverse)));
            for (int bit = 0; bit < scan.warps; ++bit) {
                line("{{ const {0} up = {1}; if ((lane & {2}) >= {3}) {4} = {5}; }}", scan.type,
                     from(fmt::format("lane - {}", 1 << bit)), last, 1 << bit, all,
                     scan.joined("up", all));
            }
            line("{} {}_warps = {};", scan.type, p, from(fmt::format("{}_warp - 1", scan.base)));
            line("if ({}_warp == 0) {}_warps = {};", scan.base, p, scan.zero);
            line("{} = {};", all, from(fmt::format("{}", last)));
        } else {
            line("{0} {1}_all = {2}, {1}_warps = {2};", scan.type, p, scan.zero);
            for (int w = 0; w <= last; ++w) {
                line("if ({0}_warp == {1}) {2}_warps = {2}_all;", scan.base, w, p);
                line(
                    "{0}_all = {1};", p,
                    scan.joined(p + "_all", total(fmt::format("{}", scan.reverse ? last - w : w))));
            }
        }
        for (std::size_t j = i; j < end; ++j) {
            const std::string& q = scan.names[j];
            line("{0}_before = {1};", q, scan.joined(p + "_warps", q + "_before"));
            finish_line(scan, j, registers(parts), made.result(), j + 1 == end ? p + "_all" : "");
        }
    }
    if (made.has("totals"))
        totals(scan.lines, scan.axis, scan.layout, made.results[1], scan.carries);
    if (p_.blocks > 1) line("turn ^= 1;");
}

void ThreadPrinter::join_in_lanes(const Scan& scan, const std::string& p, int each,
                                  const std::function<std::string(const std::string&)>& total) {
    const std::string all = p + "_all";
    const auto from = [&](const std::string& lane) {
        return shuffled("__shfl_sync", scan.element, all, lane);
    };
    const int last = 32 * each - 1;
    const auto nth = [&](const std::string& n) {
        return total(scan.reverse ? fmt::format("{} - ({})", last, n) : n);
    };
    line("{} {} = {};", scan.type, all, nth(fmt::format("lane * {}", each)));
    for (int i = 1; i < each; ++i) {
        line("{} = {};", all, scan.joined(all, nth(fmt::format("lane * {} + {}", each, i))));
    }
    for (int bit = 0; bit < 5; ++bit) {
        line("{{ const {0} up = {1}; if (lane >= {2}) {3} = {4}; }}", scan.type,
             from(fmt::format("lane - {}", 1 << bit)), 1 << bit, all, scan.joined("up", all));
    }
    line("{} {}_warps = {};", scan.type, p, from(fmt::format("{}_warp / {} - 1", scan.base, each)));
    line("if ({0}_warp < {1}) {2}_warps = {3};", scan.base, each, p, scan.zero);
    for (int i = 0; i + 1 < each; ++i) {
        const std::string n = fmt::format("({}_warp & {}) + {}", scan.base, last & ~(each - 1), i);
        line("if (({}_warp & {}) > {}) {}_warps = {};", scan.base, each - 1, i, p,
             scan.joined(p + "_warps", nth(n)));
    }
    line("{} = {};", all, from("31"));
}

}  // namespace tilewright::cuda::schedule
