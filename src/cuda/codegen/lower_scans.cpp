// Scans: operations across registers, lanes and warps.
#include "cuda/codegen/lower_scans.h"

#include <algorithm>
#include <map>
#include <utility>

#include "cuda/codegen/lower_values.h"
#include "cuda/schedule/scan_lines.h"
#include "ir/passes/pipeline.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Value;

namespace {

constexpr std::size_t kMaxValues = 8;  // of a tuple: each takes registers and shuffles of its own

/// The function of a scan without calls and constants of its own to compute.
ir::Function combine_of(const Instruction& scan) {
    ir::Function mod = *scan.get<ir::CombineAttributes>().combine;
    ir::optimise(mod);
    return mod;
}

/// Adds the totals of a scan's lines to its results where slices want them, and holds them as
/// these.
void add_totals(Lowering& cx, const Instruction& made, schedule::Instruction& scan,
                const Layout& layout, int axis) {
    const std::vector<std::vector<Value>> slices = totals_of(cx.facts, made);
    const auto wanted = [](const std::vector<Value>& values) { return !values.empty(); };
    if (std::none_of(slices.begin(), slices.end(), wanted)) return;
    scan.flag("totals");
    const Layout totals = schedule::totals_layout(layout, axis);
    for (std::size_t i = 0; i < made.results.size(); ++i) {
        const Value result = made.results[i];
        scan.results.push_back(
            cx.add(fmt::format("v{}total", result.id), totals, cx.type(result).dtype));
        for (const Value slice : slices[i]) cx.hold(slice, {totals, scan.results.back()});
    }
}

/// Bytes of the totals of a scan's lines.
std::int64_t totals_bytes(const Lowering& cx, const std::vector<schedule::ScanLine>& lines) {
    const int lanes = cx.program.blocks > 1 ? 1 : 32;  // a warp has one total, or each lane
    return static_cast<std::int64_t>(schedule::totals_of_warp(lines)) * lanes * cx.warps *
           schedule::kScanSlot;
}

int totals_buffer(Lowering& cx, const std::vector<schedule::ScanLine>& lines) {
    const std::int64_t bytes = totals_bytes(cx, lines);
    return cx.program.blocks > 1 ? cx.exchange_buffer(bytes) : cx.buffer(bytes);
}

}  // namespace

void lower_scan(Lowering& cx, const Instruction& made) {
    const int axis = made.get<ir::ReduceAttributes>().axis;
    const Value result = made.result();
    const DType dtype = cx.type(result).dtype;
    const Layout layout = scan_layout(cx.facts, made);
    const schedule::Value elements = value_in(cx, made.operands[0], layout);
    const std::string base = fmt::format("v{}", result.id);
    const bool across = schedule::count_along(layout, layout.warp, axis) > 0;
    schedule::Instruction same = schedule::tile_instruction(cx.function, made);
    same.operands = {elements};
    if (!across) {
        schedule::Instruction& whole = cx.append(same);
        cx.hold(result, cx.result_of(whole, base, layout, dtype));
        return add_totals(cx, made, whole, layout, axis);
    }
    schedule::Instruction& scan = cx.append(same);
    const schedule::Value parts =
        cx.result_of(scan.flag("parts"), base, layout, schedule::combined_dtype(dtype)).value;
    const int id = totals_buffer(cx, schedule::lines_of_scan(layout, same));
    const bool shares = cx.program.blocks > 1;
    cx.await_blocks();
    schedule::Instruction& write = cx.append(schedule::make(schedule::Op::write_totals, {parts}));
    write.attributes = same.attributes;
    if (shares) write.flag("blocks");
    write.with_symbol("writes", buffer_name(id));
    if (shares) cx.append(schedule::Op::meet);
    schedule::Instruction& join = cx.append(schedule::make(schedule::Op::join_totals, {parts}));
    join.attributes = same.attributes;
    if (shares) join.flag("blocks");
    join.with_symbol("reads", buffer_name(id));
    cx.hold(result, cx.result_of(join, base + "s", layout, dtype));
    add_totals(cx, made, join, layout, axis);
}

std::string no_combine_text(const Instruction& scan) {
    if (scan.results.size() > kMaxValues) {
        return fmt::format("it combines {} values, more than {}", scan.results.size(), kMaxValues);
    }
    const ir::Function mod = combine_of(scan);
    for (const Instruction& made : mod.body.body) {
        if (made.op == ir::Op::constant || made.op == ir::Op::yield) continue;
        if (!ir::is_elementwise(made.op)) {
            return fmt::format("its function has `{}`, which is not elementwise", name(made.op));
        }
    }
    return "";
}

void lower_associative_scan(Lowering& cx, const Instruction& made) {
    const ir::Function mod = combine_of(made);
    const Layout layout = scan_layout(cx.facts, made);
    const std::size_t count = made.results.size();
    const std::string base = fmt::format("v{}", made.result().id);
    schedule::Instruction scan = schedule::tile_instruction(cx.function, made);
    const int axis = static_cast<int>(scan.number("axis"));
    const bool across = schedule::count_along(layout, layout.warp, axis) > 0;
    schedule::Instruction write = schedule::make(schedule::Op::write_totals, {});
    write.attributes = scan.attributes;
    write.flag("combine");
    schedule::Instruction join = schedule::make(schedule::Op::join_totals, {});
    join.attributes = write.attributes;
    for (std::size_t i = 0; i < count; ++i) {
        scan.operands.push_back(value_in(cx, made.operands[i], layout));
    }
    // Elements are arguments of the block; values that the function captures are visible in it.
    schedule::Block& body = scan.blocks.emplace_back();
    std::map<Value, schedule::Value> known;
    for (std::size_t i = 0; i < mod.parameters().size(); ++i) {
        const Value parameter = mod.parameters()[i];
        if (i >= 2 * count) {
            known[parameter] = scalar_of(cx, made.operands[i - count]);
            continue;
        }
        body.arguments.push_back(
            cx.add(fmt::format("{}{}{}", base, i < count ? "a" : "b", i % count),
                   cx.scalar_layout(), mod.type(parameter).dtype));
        known[parameter] = body.arguments.back();
    }
    for (const Instruction& inner : mod.body.body) {
        schedule::Instruction same = schedule::tile_instruction(mod, inner);
        for (const Value operand : inner.operands) same.operands.push_back(known.at(operand));
        for (const Value result : inner.results) {
            known[result] = cx.add(fmt::format("{}f{}", base, result.id), cx.scalar_layout(),
                                   mod.type(result).dtype);
            same.results.push_back(known[result]);
        }
        body.body.push_back(std::move(same));
    }
    const auto add_results = [&](schedule::Instruction& of, const char* suffix) {
        for (const Value result : made.results) {
            of.results.push_back(
                cx.add(fmt::format("v{}{}", result.id, suffix), layout, cx.type(result).dtype));
        }
        return of.results;
    };
    std::vector<schedule::Value> results = add_results(scan, "");
    if (across)
        scan.flag("parts");
    else
        add_totals(cx, made, scan, layout, axis);
    const std::vector<schedule::ScanLine> lines = schedule::lines_of_scan(layout, scan);
    const bool shares = cx.program.blocks > 1;
    cx.append(std::move(scan));
    if (across) {
        write.operands = join.operands = results;
        if (shares) write.flag("blocks");
        if (shares) join.flag("blocks");
        for (std::size_t i = 0; i < count; ++i) {
            const int id = totals_buffer(cx, lines);
            write.with_symbol("writes", buffer_name(id));
            join.with_symbol("reads", buffer_name(id));
        }
        results = add_results(join, "s");
        add_totals(cx, made, join, layout, axis);
        cx.await_blocks();
        cx.append(std::move(write));
        if (shares) cx.append(schedule::Op::meet);
        cx.append(std::move(join));
    }
    for (std::size_t i = 0; i < count; ++i) cx.hold(made.results[i], {layout, results[i]});
}

}  // namespace tilewright::cuda
