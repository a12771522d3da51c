// Blocks that read the same operand: each loads half of it, for both.
#include "cuda/schedule/pair_blocks.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

/// Tiles along axes of the grid; 0: it depends on the call.
std::int64_t tiles_along(const Program& program, const std::vector<int>& axes) {
    std::int64_t tiles = 1;
    for (int axis : axes) {
        if (program.grid[axis] == ir::kDynamic) return 0;
        tiles *= program.grid[axis];
    }
    return tiles;
}

/// The load of the operand that neighbours along rows or columns share, if they can share it.
Instruction* shared_load(Program& p, bool rows) {
    const bool one_channel = p.channels.size() == 1 && p.channels[0].copied == 0;
    if (is_chained(p) || !one_channel || p.order.rows.empty() || p.order.columns.empty()) {
        return nullptr;
    }
    if (tiles_along(p, rows ? p.order.rows : p.order.columns) == 1) return nullptr;
    const Instruction* product = nullptr;
    int products = 0;
    each_instruction(p.body, [&](const Instruction& made) {
        if (!made.is(Op::wgmma)) return;
        product = &made;
        ++products;
    });
    if (products != 1) return nullptr;
    const auto operands = operand_buffers(p, *product);
    const std::string& shared = rows ? operands.second : operands.first;
    Instruction* load = nullptr;
    each_instruction(p.body, [&](Instruction& made) {
        if (made.is(Op::tma_load) && made.symbol("to") == shared) load = &made;
    });
    return load != nullptr && p.map(load->symbol("map")).box.size() >= 2 ? load : nullptr;
}

/// The block of the cluster loads half of what it loaded, for two.
void share(Program& program, Instruction& load, bool rows) {
    const Buffer& buffer = program.buffer(load.symbol("to"));
    load.with_symbol("multicast", rows ? "rows" : "columns");
    if (buffer.columns / buffer.panel() % 2 == 0) return;
    // The boxes are cut along the tile's rows.
    Map half = program.map(load.symbol("map"));
    half.name += "_half";
    *std::find(half.box.begin(), half.box.end() - 1, buffer.rows) = buffer.rows / 2;
    for (Attribute& one : load.attributes) {
        if (one.name == "map") one.text = half.name;
    }
    const std::string whole = half.name.substr(0, half.name.size() - 5);
    bool used = false;
    each_instruction(program.body, [&](const Instruction& made) {
        used |= made.is(Op::tma_load) && made.symbol("map") == whole;
    });
    program.maps.push_back(std::move(half));
    if (!used) std::erase_if(program.maps, [&](const Map& one) { return one.name == whole; });
}

}  // namespace

void pair_blocks(Program& program) {
    const Pairs wanted = program.wanted_pairs;
    if (wanted == Pairs::none) return;
    Instruction* const of_rows = wanted == Pairs::columns ? nullptr : shared_load(program, true);
    Instruction* const of_columns = wanted == Pairs::rows ? nullptr : shared_load(program, false);
    const bool whole = (of_rows != nullptr || wanted == Pairs::columns) &&
                       (of_columns != nullptr || wanted == Pairs::rows);
    if (!whole || of_rows == of_columns) return;
    program.pairs = wanted;
    if (of_rows != nullptr) share(program, *of_rows, true);
    if (of_columns != nullptr) share(program, *of_columns, false);
    program.channels[0].empty_arrivals *= program.sharers();
}

}  // namespace tilewright::cuda::schedule
