// Cuts blocks for sm_90a.
#include "cuda/schedule/prepare.h"

#include <algorithm>
#include <set>

#include "cuda/schedule/merge_blocks.h"
#include "cuda/schedule/product_time.h"
#include "cuda/schedule/program.h"
#include "cuda/schedule/whole_product.h"
#include "ir/passes/error_functions.h"
#include "ir/passes/fold_factors.h"
#include "ir/passes/pipeline.h"
#include "ir/passes/retile.h"
#include "support/check.h"

namespace tilewright::cuda::schedule {
namespace {

constexpr Tile kTiles[] = {{128, 256}, {128, 192}, {128, 128}, {128, 64},
                           {64, 256},  {64, 128},  {256, 192}, {128, 192, Pairs::none, true}};
/// Of products that are computed as their transposes, see `Sums`.
constexpr Tile kSwappedTiles[] = {{256, 128}, {192, 128}, {128, 128},
                                  {64, 128},  {256, 64},  {128, 64}};

ir::Shape largest_product(const ir::Function& kernel) {
    ir::Shape largest{1, 1};
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        if (made.op != ir::Op::dot) return;
        const ir::Shape& shape = kernel.type(made.result()).shape;
        if (shape.rank() == 2 && shape.size() > largest.size()) largest = shape;
    });
    return largest;
}

/// The operand type of the kernel's largest product.
DType operand_dtype(const ir::Function& kernel) {
    DType dtype = DType::bf16;
    std::int64_t most = 0;
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        if (made.op != ir::Op::dot || kernel.type(made.result()).shape.size() <= most) return;
        most = kernel.type(made.result()).shape.size();
        dtype = kernel.type(made.operands[0]).dtype;
    });
    return dtype;
}

/// Does a dot depend on another one, as in attention?
bool is_chained(const ir::Function& kernel) {
    bool chained = false;
    std::set<ir::Value> computed;
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        const auto follows = [&](ir::Value operand) { return computed.contains(operand); };
        if (made.op == ir::Op::dot) {
            chained |= follows(made.operands[0]) || follows(made.operands[1]);
        }
        if (made.op == ir::Op::dot ||
            std::any_of(made.operands.begin(), made.operands.end(), follows)) {
            computed.insert(made.results.begin(), made.results.end());
        }
    });
    return chained;
}

}  // namespace

Prepared prepare_for_wgmma(const ir::Function& kernel, const Tile& tile) {
    bool has_dot = false;
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        has_dot |= made.op == ir::Op::dot || made.op == ir::Op::call;
    });
    if (!has_dot) return {{}, "it has no dot", false};
    ir::Function result = whole_product(kernel);  // loops over K become one dot
    if (is_chained(result)) {
        // What one run joins may be joined with what follows.
        while (ir::fold_factors(result).changed()) ir::optimise(result);
    }
    ir::RetileOptions options;
    options.schedule = ir::RetileOptions::Schedule::grid;
    options.rows = tile.rows;
    options.columns = tile.columns;
    options.k_chunk = 128 / size_of(operand_dtype(result));  // the span of the swizzle
    options.max_tile_elements = tile.rows * tile.columns;
    if (const auto merged = mergeable_blocks(result); merged && !is_chained(result)) {
        ir::Function cut = result;
        ir::RetileOptions beyond = options;
        beyond.extents = merged->extents;
        const bool is_cut = ir::try_retile(cut, beyond).refusal.empty();
        if (is_cut && remove_merged_axes(cut, *merged, result.grid.size())) {
            ir::optimise(cut);
            ir::error_functions(cut);
            return {std::move(cut), {}, true};
        }
    }
    const ir::RetileReport report = ir::try_retile(result, options);
    if (!report.refusal.empty()) return {{}, report.refusal, false};
    ir::optimise(result);
    ir::error_functions(result);
    return {std::move(result), {}, false};
}

std::span<const Tile> product_tiles(const ir::Function& kernel) {
    return is_swapped(kernel) ? std::span<const Tile>(kSwappedTiles) : kTiles;
}

std::int64_t count_dots(const ir::Function& kernel) {
    std::int64_t dots = 0;
    ir::walk(kernel.body, [&](const ir::Instruction& made) { dots += made.op == ir::Op::dot; });
    return dots;
}

bool has_tiles_to_choose(const ir::Function& kernel) {
    return count_dots(kernel) > 0 && !is_chained(kernel);
}

std::vector<Tile> tiles_to_try(const ir::Function& kernel) {
    if (is_chained(kernel)) return {kTiles[0]};  // blocks keep their size
    std::vector<std::pair<double, Tile>> costs;
    const DType operands = operand_dtype(kernel);
    const bool two_sums = is_float(operands) && size_of(operands) == 1;  // see select_dots
    const bool several_dots = count_dots(kernel) > 1;
    for (const Tile& tile : product_tiles(kernel)) {
        if (two_sums && tile.rows * tile.columns > 128 * 128) continue;
        // A thread would have 192 registers for the sums of each.
        if (several_dots && (tile.turns || tile.rows * tile.columns > 128 * 256)) continue;
        const Prepared cut = prepare_for_wgmma(kernel, tile);
        if (!cut.refusal.empty()) continue;
        // The tiles may be smaller than what was asked for.
        const ir::Shape product = largest_product(cut.kernel);
        const ProductWork work = work_of(cut.kernel);
        for (const Pairs pairs : {Pairs::none, Pairs::rows, Pairs::columns, Pairs::both}) {
            const bool can_pair = cut.merged && gains_by_pairs(work, tile, pairs);
            if (pairs != Pairs::none && (!can_pair || tile.turns)) continue;
            const double clocks = clocks_of(work, {product[0], product[1], pairs, tile.turns});
            costs.emplace_back(clocks, Tile{tile.rows, tile.columns, pairs, tile.turns});
        }
    }
    std::stable_sort(costs.begin(), costs.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Tile> tiles;
    for (const auto& [cost, tile] : costs) tiles.push_back(tile);
    if (tiles.empty()) tiles.push_back(kTiles[0]);
    return tiles;
}

}  // namespace tilewright::cuda::schedule
