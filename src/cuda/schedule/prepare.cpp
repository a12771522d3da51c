// Cuts blocks for sm_90a.
#include "cuda/schedule/prepare.h"

#include <algorithm>
#include <set>

#include "cuda/schedule/program.h"
#include "ir/passes/fold_factors.h"
#include "ir/passes/pipeline.h"
#include "ir/passes/retile.h"
#include "support/check.h"
#include "support/integer.h"

namespace tilewright::cuda::schedule {
namespace {

constexpr std::int64_t kMultiprocessors = 132;  // of an H100 and an H200

constexpr Tile kTiles[] = {{128, 256}, {128, 128}, {128, 64}, {64, 128}};

/// Estimated time per element of the kernel's largest product, relative to a tile of 128 x 256: the
/// smaller a tile, the more is read for each product.
double time_of(const ir::Shape& tile) {
    constexpr double kProducts = 0.76, kReads = 20.5;  // fitted to H200 at 8192 x 8192 x 8192
    return kProducts +
           kReads * (1.0 / static_cast<double>(tile[0]) + 1.0 / static_cast<double>(tile[1]));
}

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

/// Programs of a grid; 0 where it depends on the call.
std::int64_t programs_of(const ir::Function& kernel) {
    std::int64_t programs = 1;
    for (std::int64_t extent : kernel.grid) {
        if (extent == ir::kDynamic || __builtin_mul_overflow(programs, extent, &programs)) return 0;
    }
    return programs;
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
    if (!has_dot) return {{}, "it has no dot"};
    ir::Function result = kernel;
    ir::optimise(result);
    if (is_chained(result) && ir::fold_factors(result).changed()) ir::optimise(result);
    ir::RetileOptions options;
    options.schedule = ir::RetileOptions::Schedule::grid;
    options.rows = tile.rows;
    options.columns = tile.columns;
    options.k_chunk = 128 / size_of(operand_dtype(result));  // the span of the swizzle
    options.max_tile_elements = tile.rows * tile.columns;
    const ir::RetileReport report = ir::try_retile(result, options);
    if (!report.refusal.empty()) return {{}, report.refusal};
    ir::optimise(result);
    return {std::move(result), {}};
}

std::vector<Tile> tiles_to_try(const ir::Function& kernel) {
    if (is_chained(kernel)) return {kTiles[0]};  // blocks keep their size
    std::vector<std::pair<double, Tile>> costs;
    const DType operands = operand_dtype(kernel);
    const bool two_sums = is_float(operands) && size_of(operands) == 1;  // see select_dots
    for (const Tile& tile : kTiles) {
        if (two_sums && tile.rows * tile.columns > 128 * 128) continue;
        const Prepared cut = prepare_for_wgmma(kernel, tile);
        if (!cut.refusal.empty()) continue;
        const ir::Shape product = largest_product(cut.kernel);
        const std::int64_t programs = programs_of(cut.kernel);
        const auto waves = ceil_div(programs, kMultiprocessors);
        // A grid that depends on the call is taken to be large.
        const auto elements = static_cast<double>(programs > 0 ? waves * product.size() : 1);
        costs.emplace_back(elements * time_of(product), tile);
    }
    std::stable_sort(costs.begin(), costs.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Tile> tiles;
    for (const auto& [cost, tile] : costs) tiles.push_back(tile);
    if (tiles.empty()) tiles.push_back(kTiles[0]);
    return tiles;
}

}  // namespace tilewright::cuda::schedule
