// Estimated clocks of products, fitted to measurements (docs/lab/2026-11-gpu.md).
#include "cuda/schedule/product_time.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "ir/access.h"
#include "support/integer.h"

namespace tilewright::cuda::schedule {
namespace {

constexpr std::int64_t kMultiprocessors = 132;  // of an H100 and an H200

using Definitions = std::map<ir::Value, const ir::Instruction*>;

std::int64_t constant_of(const Definitions& definitions, ir::Value value) {
    const auto at = definitions.find(value);
    const bool known = at != definitions.end() && at->second->op == ir::Op::constant;
    return known ? static_cast<std::int64_t>(at->second->get<ir::ConstantAttributes>().bits) : -1;
}

/// Bytes between the rows of the array that an operand is loaded from; 0: unknown.
std::int64_t pitch_of(const ir::Function& cut, const Definitions& definitions, ir::Value operand) {
    auto at = definitions.find(operand);
    if (at != definitions.end() && at->second->op == ir::Op::transpose) {
        at = definitions.find(at->second->operands[0]);
    }
    if (at == definitions.end() || at->second->op != ir::Op::load) return 0;
    const ir::RefType& array = cut.ref_type(ir::access(*at->second).ref);
    if (array.rank() == 0 || array.extents.back() == ir::kDynamic) return 0;
    return array.extents.back() * size_of(array.dtype);
}

/// Of two things that happen at the same time; a bit more where they take about as long.
double longer_of(double a, double b) {
    constexpr double kSharpness = 10;
    const double longer = std::max(a, b), shorter = std::min(a, b);
    return longer * std::pow(1 + std::pow(shorter / longer, kSharpness), 1 / kSharpness);
}

/// Clocks from the last step of a tile to the first one of the next, most of which is its stores.
double clocks_after(const Tile& tile) {
    constexpr std::pair<std::int64_t, double> kOf128[] = {
        {64, 1900}, {128, 2700}, {192, 4700}, {256, 6100}};
    constexpr std::pair<std::int64_t, double> kOf64[] = {{128, 1300}, {256, 2400}};
    const auto at = [&](const auto& clocks) {
        double result = 0;
        for (const auto& [columns, of_tile] : clocks) {
            if (columns <= tile.columns) result = of_tile;
        }
        return result;
    };
    constexpr std::pair<std::int64_t, double> kOf256[] = {{128, 6100}, {192, 9000}};
    return tile.rows > 128 ? at(kOf256) : tile.rows > 64 ? at(kOf128) : at(kOf64);
}

/// The same product, of transposed arrays.
Tile transposed(const Tile& tile) {
    const Pairs pairs = tile.pairs == Pairs::rows      ? Pairs::columns
                        : tile.pairs == Pairs::columns ? Pairs::rows
                                                       : tile.pairs;
    return {tile.columns, tile.rows, pairs, tile.turns};
}
ProductWork transposed(const ProductWork& work) {
    ProductWork result = work;
    std::swap(result.rows, result.columns);
    std::swap(result.left_pitch, result.right_pitch);
    result.swapped = false;
    return result;
}

/// Instructions for each element of the result, after its product.
std::int64_t operations_after(const ir::Function& cut) {
    constexpr std::int64_t kFunction = 24, kApproximation = 8;
    ir::Shape tile;
    std::int64_t operations = 0;
    for (const ir::Instruction& made : cut.body.body) {
        if (made.op == ir::Op::for_loop && !made.results.empty()) {
            tile = cut.type(made.result()).shape;
        }
        if (!ir::is_elementwise(made.op) || made.op == ir::Op::cast ||
            cut.type(made.result()).shape != tile) {
            continue;
        }
        const auto* const math = std::get_if<ir::MathAttributes>(&made.attributes);
        const bool approx = math != nullptr && math->approx;
        operations += ir::function_info(made.op) == nullptr && made.op != ir::Op::div ? 1
                      : approx ? kApproximation
                               : kFunction;
    }
    return operations;
}

}  // namespace

bool is_swapped(const ir::Function& kernel) {
    Definitions definitions;
    std::int64_t most = 0;
    bool swapped = false;
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        for (ir::Value result : made.results) definitions[result] = &made;
        if (made.op != ir::Op::dot || kernel.type(made.result()).shape.size() <= most) return;
        most = kernel.type(made.result()).shape.size();
        const auto& dot = made.get<ir::DotAttributes>();
        const auto source = definitions.find(made.operands[1]);
        const bool transposed =
            source != definitions.end() && source->second->op == ir::Op::transpose;
        swapped = kernel.type(made.operands[0]).dtype == DType::f32 &&
                  dot.precision == ir::Precision::tf32 && dot.transpose_b == transposed;
    });
    return swapped;
}

bool gains_by_pairs(const ProductWork& work, const Tile& tile, Pairs pairs) {
    if (work.swapped) {
        const Tile other = transposed({tile.rows, tile.columns, pairs});
        return gains_by_pairs(transposed(work), other, other.pairs);
    }
    const bool right = work.right_pitch % 128 != 0, left = work.left_pitch % 128 != 0;
    if (tile.rows > 128) return pairs == Pairs::columns && left && work.columns > 1;
    if (tile.rows != 128 || work.rows == 1) return false;
    if (pairs == Pairs::rows) return right && tile.columns >= 192;
    return pairs == Pairs::both && right && left && tile.columns >= 128 && work.columns > 1;
}

ProductWork work_of(const ir::Function& cut) {
    ProductWork work;
    work.tiles = 1;
    for (std::int64_t extent : cut.grid) {
        const bool known = extent != ir::kDynamic && work.tiles != 0;
        if (!known || __builtin_mul_overflow(work.tiles, extent, &work.tiles)) work.tiles = 0;
    }
    if (cut.grid.size() >= 2) {
        work.rows = cut.grid.rbegin()[1];
        work.columns = cut.grid.rbegin()[0];
    }
    work.swapped = is_swapped(cut);
    work.operations = operations_after(cut);
    Definitions definitions;
    ir::walk(cut.body, [&](const ir::Instruction& made) {
        for (ir::Value result : made.results) definitions[result] = &made;
    });
    ir::walk(cut.body, [&](const ir::Instruction& made) {
        if (made.op == ir::Op::for_loop) {
            const std::int64_t low = constant_of(definitions, made.operands[0]),
                               high = constant_of(definitions, made.operands[1]),
                               step = constant_of(definitions, made.operands[2]);
            if (low >= 0 && high > low && step > 0) work.steps = ceil_div(high - low, step);
        }
        if (made.op != ir::Op::dot) return;
        work.left_pitch = pitch_of(cut, definitions, made.operands[0]);
        work.right_pitch = pitch_of(cut, definitions, made.operands[1]);
    });
    return work;
}

double clocks_of(const ProductWork& work, const Tile& tile) {
    if (work.swapped) return clocks_of(transposed(work), transposed(tile));
    constexpr double kRowBytes = 128;         // of a step, from each row of the operands
    constexpr double kElementsPerClock = 32;  // of the result, multiplied along a step
    constexpr double kBytesPerClock = 69;     // from L2
    constexpr double kStart = 7000;           // of a launch
    constexpr std::int64_t kUnknownSteps = 64;
    const auto rows = static_cast<double>(tile.rows), columns = static_cast<double>(tile.columns);
    // Rows that begin elsewhere than on 128 bytes touch two cache lines each.
    const auto share = [](std::int64_t pitch, double of_32, double of_16) {
        return pitch % 128 == 0 ? 1.0 : pitch % 32 == 0 ? of_32 : of_16;
    };
    // Blocks of a cluster wait for each other in each step, and for the launch of all.
    constexpr double kSharedByPair = 0.6, kSharedByFour = 0.5;  // of an operand's bytes
    constexpr double kStepOfPair = 1.13, kStepOfFour = 1.05, kClusterStart = 4000;
    const bool four = tile.pairs == Pairs::both;
    const bool rows_paired = tile.pairs == Pairs::rows || four;
    const bool columns_paired = tile.pairs == Pairs::columns || four;
    const double shared = four ? kSharedByFour : kSharedByPair;
    const double right = share(work.right_pitch, 1.65, 3.2) * (rows_paired ? shared : 1.0),
                 left = share(work.left_pitch, 1.4, 3.3) * (columns_paired ? shared : 1.0);
    const double bytes = kRowBytes * (rows * left + columns * right);
    const double step = longer_of(rows * columns / kElementsPerClock, bytes / kBytesPerClock) *
                        (four                                            ? kStepOfFour
                         : tile.pairs != Pairs::none && tile.rows == 128 ? kStepOfPair
                                                                         : 1.0);
    const auto steps = static_cast<double>(work.steps > 0 ? work.steps : kUnknownSteps);
    constexpr double kLanes = 128;
    const double after =
        clocks_after(tile) + static_cast<double>(work.operations) * rows * columns / kLanes;
    // One warpgroup stores while the other one multiplies.
    constexpr double kTurn = 300;
    const double multiply = steps * step + kTurn;
    const double of_tile =
        tile.turns ? std::max(multiply, (multiply + 2 * after) / 2) : steps * step + after;
    if (work.tiles == 0) return of_tile / (rows * columns);
    if (tile.pairs != Pairs::none && work.rows > 0 && work.columns > 0) {
        // Not every multiprocessor finds three others in its group.
        const std::int64_t at_once = four ? 30 : kMultiprocessors / 2;
        const std::int64_t clusters = work.tiles / (work.rows * work.columns) *
                                      ceil_div(work.rows, rows_paired ? 2 : 1) *
                                      ceil_div(work.columns, columns_paired ? 2 : 1);
        const auto waves = static_cast<double>(ceil_div(clusters, at_once));
        return kStart + kClusterStart + waves * of_tile;
    }
    const double last = tile.turns ? 2 * after : 0;
    return kStart + static_cast<double>(ceil_div(work.tiles, kMultiprocessors)) * of_tile + last;
}

double clocks_of_parts(const ProductWork& work, const Tile& tile, std::int64_t parts,
                       std::int64_t elements) {
    constexpr double kFinish = 7000, kFinishElement = 0.0053;
    ProductWork part = work;
    part.steps = ceil_div(work.steps, parts);
    part.tiles = work.tiles * ceil_div(work.steps, part.steps);
    return clocks_of(part, tile) + kFinish +
           kFinishElement * static_cast<double>(elements) * static_cast<double>(parts);
}

}  // namespace tilewright::cuda::schedule
