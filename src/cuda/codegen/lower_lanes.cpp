// Reductions: operations across registers, lanes and warps.
#include "cuda/codegen/lower_lanes.h"

#include <algorithm>
#include <utility>

#include "cuda/codegen/lower_ahead.h"
#include "cuda/codegen/lower_values.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Value;

namespace {

void hold_reduced(Lowering& cx, const Instruction& reduce, const Layout& layout,
                  const std::vector<schedule::Value>& parts) {
    const Value result = reduce.result();
    const DType out = cx.type(result).dtype;
    if (schedule::combined_dtype(out) == out) return cx.hold(result, {layout, parts.back()});
    schedule::Instruction& narrow = cx.append(schedule::make(schedule::Op::narrow, parts));
    cx.hold(result, cx.result_of(narrow, fmt::format("v{}r", result.id), layout, out));
}

bool is_deferred(const Lowering& cx, const Instruction& sum) {
    return std::any_of(cx.plan.sums.begin(), cx.plan.sums.end(), [&](const auto& loop) {
        return std::find(loop.second.begin(), loop.second.end(), &sum) != loop.second.end();
    });
}

/// The lanes that have parts of the same sums, as bits of their number.
std::int64_t lanes_of_sum(const Lowering& cx, const Instruction& sum) {
    const Layout from = cx.home(sum.operands[0]);
    const std::size_t axis = sum.get<ir::ReduceAttributes>().axis;
    std::int64_t lanes = 0;
    for (std::size_t bit = 0; bit < from.lane.size(); ++bit) {
        if (from.unpack(from.lane[bit])[axis] != 0) lanes |= std::int64_t{1} << bit;
    }
    return lanes;
}

}  // namespace

void lower_reduce(Lowering& cx, const Instruction& made) {
    const auto& attributes = made.get<ir::ReduceAttributes>();
    const std::size_t axis = attributes.axis;
    const Value source = made.operands[0];
    const DType dtype = schedule::combined_dtype(cx.type(source).dtype);
    const bool indices = schedule::gives_index(attributes.kind), deferred = is_deferred(cx, made);
    const Held* known = !deferred ? cx.find(source) : nullptr;
    const Layout from = known != nullptr ? known->layout : cx.home(source);
    const schedule::Value elements = value_in(cx, source, from);
    const Layout to = from.without(attributes.axis);
    schedule::Instruction& reduce = cx.append(schedule::tile_instruction(cx.function, made));
    reduce.operands = {elements};
    if (deferred) reduce.flag("partial");
    const std::string base = fmt::format("v{}", made.result().id);
    reduce.results = {cx.add(base, to, dtype)};
    if (indices) reduce.results.push_back(cx.add(base + "i", to, DType::i32));
    std::vector<std::int64_t> warps;
    for (std::size_t bit = 0; bit < from.warp.size(); ++bit) {
        if (from.unpack(from.warp[bit])[axis] != 0) warps.push_back(static_cast<int>(bit));
    }
    std::vector<schedule::Value> parts = reduce.results;
    if (warps.empty()) return hold_reduced(cx, made, to, parts);
    reduce.flag("parts");
    const std::int64_t size = covered(to.shape).size() << warps.size();
    std::vector<int> buffers;
    for (const schedule::Value part : parts) {
        const int bytes = size_of(cx.program.type(part).type.dtype);
        buffers.push_back(cx.buffer(size * std::max(bytes, 4)));
    }
    schedule::Instruction& write = cx.append(schedule::make(schedule::Op::write_parts, parts));
    write.with("warps", warps);
    for (const int id : buffers) write.with_symbol("writes", buffer_name(id));
    keep_packed(cx);
    // Read where the result is needed: earlier reductions share the barrier.
    cx.unread.push_back({&made, to, std::move(parts), std::move(warps), std::move(buffers)});
    if (indices) read_warp_parts(cx);
}

void read_warp_parts(Lowering& cx) {
    for (WarpParts& parts : std::exchange(cx.unread, {})) {
        schedule::Instruction& join =
            cx.append(schedule::make(schedule::Op::join_parts, parts.values));
        join.flag(std::string(ir::name(parts.reduce->get<ir::ReduceAttributes>().kind)))
            .with("warps", std::move(parts.warps));
        for (const int id : parts.buffers) join.with_symbol("reads", buffer_name(id));
        for (schedule::Value& value : parts.values) {
            value = cx.add("", parts.layout, cx.program.type(value).type.dtype);
        }
        join.results = parts.values;
        hold_reduced(cx, *parts.reduce, parts.layout, parts.values);
    }
}

void keep_first_lane(Lowering& cx, const Instruction& sum, const Held& carry) {
    cx.append(schedule::make(schedule::Op::clear, {carry.value}))
        .with("lanes", lanes_of_sum(cx, sum));
}

Held join_lanes(Lowering& cx, const Instruction& sum, const Held& carry) {
    schedule::Instruction& join =
        cx.append(schedule::make(schedule::Op::join_lanes, {carry.value}));
    join.with("lanes", lanes_of_sum(cx, sum));
    return cx.result_of(join, "", carry.layout, cx.program.type(carry.value).type.dtype);
}

}  // namespace tilewright::cuda
