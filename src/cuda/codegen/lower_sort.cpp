// Sorting along an axis, in shared memory.
#include <algorithm>
#include <bit>

#include "cuda/codegen/lower_shared.h"
#include "cuda/codegen/lower_values.h"
#include "cuda/schedule/sort_lines.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

/// sort and argsort of one tile are done at once where the block has both.
void lower_sort(Lowering& cx, const Instruction& made) {
    if (cx.find(made.result()) != nullptr) return;  // with the other one
    const auto& how = made.get<ir::SortAttributes>();
    const Value source = made.operands[0];
    const ir::Type& type = cx.type(source);
    std::vector<const Instruction*> wanted;
    for (const Instruction& each : cx.block->body) {
        const bool same = (each.op == Op::sort || each.op == Op::argsort) &&
                          each.operands[0] == source && each.get<ir::SortAttributes>() == how;
        if (same) wanted.push_back(&each);
    }
    const bool with_places = std::any_of(wanted.begin(), wanted.end(),
                                         [](const auto* each) { return each->op == Op::argsort; });
    const std::int64_t word = schedule::bytes_of_word(type.dtype, with_places);
    const schedule::SortedLines lines(type.shape, how.axis);
    const schedule::Value elements = held_anywhere(cx, source).value;
    const int id = cx.buffer(schedule::bytes_of_lines(lines, word));
    const auto append = [&](schedule::Op op, const char* accesses) -> schedule::Instruction& {
        return cx.append(op)
            .with("axis", how.axis)
            .with("word", word)
            .with_symbol(accesses, buffer_name(id));
    };
    const auto result = [&](schedule::Instruction& of) {
        of.results = {cx.program.add({false, type, {}}, cx.fresh("lines"))};
        return of.result();
    };
    std::vector<schedule::Value> written = {elements};
    if (lines.elements != lines.length) {
        written.push_back(result(append(schedule::Op::fill_lines, "writes")));
    }
    schedule::Instruction& write = append(schedule::Op::write_lines, "writes");
    write.operands = std::move(written);
    if (how.descending) write.flag("descending");
    const schedule::Value unsorted = result(write);
    schedule::Instruction& sort = append(schedule::Op::sort_lines, "reads");
    sort.operands = {unsorted};
    const auto kept = static_cast<std::int64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(how.count, 8))));
    if (kept < lines.length) sort.with("keep", kept);
    const schedule::Value sorted = result(sort);
    for (const Instruction* each : wanted) {
        schedule::Instruction& read = append(schedule::Op::read_lines, "reads");
        read.operands = {sorted};
        if (each->op == Op::argsort) read.flag("places");
        if (how.descending) read.flag("descending");
        const Value value = each->result();
        cx.hold(value, cx.result_of(read, fmt::format("v{}", value.id), cx.home(value),
                                    cx.type(value).dtype));
    }
}

}  // namespace tilewright::cuda
