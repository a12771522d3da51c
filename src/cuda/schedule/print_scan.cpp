// Scans: by each thread, between lanes, between warps.
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
    line("{0} = {1};", carry, scan.joined(carry, total));
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

void ThreadPrinter::write_totals(const Instruction& made) {
    if (made.has("combine")) return write_combined(made);
    const Value parts = made.operands[0];
    const Scan scan(made, layout(parts), dtype(parts), p_.value_name(parts));
    for (std::size_t i = 0; i < scan.lines.size(); ++i) {
        const std::string& p = scan.names[i];
        line("auto* const {}_m = reinterpret_cast<{}*>(memory + {}{});", p, scan.type,
             made.symbol("writes"),
             i == 0 ? "" : fmt::format(" + {}", i * 32 * p_.warps() * kScanSlot));
        line("{}_m[warp * 32 + lane] = {};", p,
             scan.lanes > 0 ? p + "_total" : registers(parts)[scan.lines[i].registers.back()]);
    }
}

void ThreadPrinter::join_totals(const Instruction& made) {
    if (made.has("combine")) return join_combined(made);
    const Value parts = made.operands[0];
    const Scan scan(made, layout(parts), dtype(parts), p_.value_name(parts));
    const int last = (1 << scan.warps) - 1;
    for (std::size_t i = 0; i < scan.lines.size(); ++i) {
        const std::string& p = scan.names[i];
        const auto total_of_warp = [&](const std::string& w) {
            return fmt::format("{}_m[((warp & {}) + {}) * 32 + lane]", p, 31 & ~last, w);
        };
        if (joins_in_lanes(scan.lanes, scan.warps)) {
            const std::string all = p + "_all";
            const auto from = [&](const std::string& lane) {
                return shuffled("__shfl_sync", scan.element, all, lane);
            };
            line("{} {} = {};", scan.type, all, total_of_warp(total_of_lane(last, scan.reverse)));
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
                line("{0}_all = {1};", p,
                     scan.joined(p + "_all",
                                 total_of_warp(fmt::format("{}", scan.reverse ? last - w : w))));
            }
        }
        line("{0}_before = {1};", p, scan.joined(p + "_warps", p + "_before"));
        finish_line(scan, i, registers(parts), made.result(), p + "_all");
    }
    if (made.has("totals"))
        totals(scan.lines, scan.axis, scan.layout, made.results[1], scan.carries);
}

}  // namespace tilewright::cuda::schedule
