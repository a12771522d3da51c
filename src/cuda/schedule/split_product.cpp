// Cuts the inner dimension of a product.
#include "cuda/schedule/split_product.h"

#include <algorithm>
#include <map>
#include <set>

#include "cuda/schedule/merge_blocks.h"
#include "cuda/schedule/prepare.h"
#include "cuda/schedule/product_time.h"
#include "cuda/schedule/schedule.h"
#include "cuda/schedule/whole_product.h"
#include "ir/access.h"
#include "ir/builder.h"
#include "ir/passes/dce.h"
#include "ir/passes/retile.h"
#include "support/integer.h"

namespace tilewright::cuda::schedule {
namespace {

constexpr std::int64_t kStepBytes = 128;  // of the inner dimension, see `prepare_for_wgmma`

/// The product of a kernel that can be split.
struct Found {
    const ir::Instruction* dot = nullptr;
    const ir::Instruction* loads[2] = {};  ///< of its operands
    std::size_t dims[2] = {};              ///< along which the inner dimension lies in their arrays
    std::int64_t depth = 0;                ///< of the inner dimension
    const ir::Instruction* store = nullptr;
};

class Search {
  public:
    explicit Search(const ir::Function& kernel) : f_(kernel) {
        for (const ir::Instruction& made : kernel.body.body) {
            for (ir::Value result : made.results) definitions_[result] = &made;
        }
    }

    std::optional<Found> run() {
        Found found;
        std::set<ir::Value> computed;  // from the product
        for (const ir::Instruction& made : f_.body.body) {
            if (!made.blocks.empty()) return std::nullopt;
            if (made.op == ir::Op::dot) {
                if (found.dot != nullptr || made.operands.size() != 2) return std::nullopt;
                found.dot = &made;
                computed.insert(made.result());
                continue;
            }
            if (made.op == ir::Op::store && found.store == nullptr) found.store = &made;
            if (std::none_of(made.operands.begin(), made.operands.end(),
                             [&](ir::Value operand) { return computed.contains(operand); })) {
                continue;
            }
            if (made.op != ir::Op::store && !ir::is_elementwise(made.op)) return std::nullopt;
            computed.insert(made.results.begin(), made.results.end());
        }
        if (found.dot == nullptr || found.store == nullptr) return std::nullopt;
        const ir::Type& type = f_.type(found.dot->result());
        if (type.shape.rank() != 2) return std::nullopt;
        const bool whole = operand(found, 0) && operand(found, 1);
        return whole && found.loads[0] != found.loads[1] ? std::optional(found) : std::nullopt;
    }

  private:
    const ir::Instruction* definition(ir::Value value) const {
        const auto at = definitions_.find(value);
        return at == definitions_.end() ? nullptr : at->second;
    }

    /// A load of all of its array along the inner dimension: a part beyond its end is zero.
    bool operand(Found& found, int side) const {
        const auto& flags = found.dot->get<ir::DotAttributes>();
        bool transposed = side == 0 ? flags.transpose_a : flags.transpose_b;
        const ir::Instruction* made = definition(found.dot->operands[side]);
        if (made != nullptr && made->op == ir::Op::transpose) {
            transposed = !transposed;
            made = definition(made->operands[0]);
        }
        if (made == nullptr || made->op != ir::Op::load) return false;
        const ir::Access access = ir::access(*made);
        if (access.mask || (access.other && !is_zero(access.other))) return false;
        const ir::AccessShape tile = ir::access_shape(f_, *made);
        const int axis = (side == 0) != transposed ? 1 : 0;
        const auto dim = static_cast<std::size_t>(
            std::find(tile.axis.begin(), tile.axis.end(), axis) - tile.axis.begin());
        const ir::Index& index = made->get<ir::AccessAttributes>().indices.at(dim);
        const std::int64_t extent = f_.ref_type(access.ref).extents[dim];
        const bool whole = index.kind == ir::Index::Kind::slice && index.stride == 1 &&
                           is_zero(access.indices[dim]) && extent != ir::kDynamic &&
                           index.size >= extent;
        found.loads[side] = made;
        found.dims[side] = dim;
        if (side == 1 && found.depth != index.size) return false;
        found.depth = index.size;
        return whole;
    }

    bool is_zero(ir::Value value) const {
        const ir::Instruction* const made = definition(value);
        return made != nullptr && made->op == ir::Op::constant &&
               made->get<ir::ConstantAttributes>().bits == 0;
    }

    const ir::Function& f_;
    std::map<ir::Value, const ir::Instruction*> definitions_;
};

/// The first row and column of a block, as the store has them.
struct Begins {
    ir::Value row, column;
};

Begins begins_of(const ir::Function& kernel, const ir::Instruction& store) {
    const ir::Access access = ir::access(store);
    const ir::AccessShape tile = ir::access_shape(kernel, store);
    Begins begins;
    for (std::size_t d = 0; d < tile.axis.size(); ++d) {
        if (tile.axis[d] == 0) begins.row = access.indices[d];
        if (tile.axis[d] == 1) begins.column = access.indices[d];
    }
    return begins;
}

/// A block of the sums of a part; `batch` are the program's positions along other axes than those
/// of blocks, so that programs of a batch have sums of their own.
std::vector<ir::IndexOperand> part_of(ir::Value part, const std::vector<ir::Value>& batch,
                                      const Begins& begins, const ir::Shape& tile) {
    std::vector<ir::IndexOperand> place{ir::IndexOperand::scalar(part)};
    for (const ir::Value position : batch) place.push_back(ir::IndexOperand::scalar(position));
    place.push_back(ir::IndexOperand::slice(begins.row, tile[0]));
    place.push_back(ir::IndexOperand::slice(begins.column, tile[1]));
    return place;
}

/// Positions along grid axes.
std::vector<ir::Value> positions_along(ir::Builder& b, const std::vector<int>& axes, int more) {
    std::vector<ir::Value> positions;
    for (const int axis : axes) positions.push_back(b.program_id(axis + more));
    return positions;
}

/// Multiplies a part, whose sums are stored.
ir::Function parts_of(const ir::Function& kernel, const Found& found, const ir::RefType& sums,
                      const std::vector<int>& batch, std::int64_t chunk) {
    ir::Function result = kernel;
    result.name += "_parts";
    const ir::Value to = result.add_parameter(sums, "sums");
    const std::vector<ir::Instruction> body = std::move(result.body.body);
    result.body.body.clear();
    // One more axis, the outermost.
    result.grid.insert(result.grid.begin(), sums.extents[0]);
    ir::Builder b(result);
    const ir::Value part = b.program_id(0);
    const ir::Value first = b.binary(ir::Op::mul, part, b.constant_int({DType::i64, {}}, chunk));
    const Begins begins = begins_of(kernel, *found.store);
    for (ir::Instruction made : body) {
        if (made.op == ir::Op::store || made.op == ir::Op::yield) continue;
        if (made.op == ir::Op::program_id || made.op == ir::Op::num_programs) {
            ++made.get<ir::AxisAttributes>().axis;
        }
        for (int side = 0; side < 2; ++side) {
            if (made.results != found.loads[side]->results) continue;
            made.operands[1 + found.dims[side]] = first;
            made.get<ir::AccessAttributes>().indices[found.dims[side]].size = chunk;
            made.get<ir::AccessAttributes>().in_bounds = false;
            ir::Type type = result.type(made.result());
            type.shape[ir::access_shape(result, made).axis[found.dims[side]]] = chunk;
            result.set_type(made.result(), type);
        }
        if (made.op == ir::Op::transpose) {
            const ir::Value from = made.operands[0];
            ir::Type type = result.type(made.result());
            const auto& order = made.get<ir::PermutationAttributes>().permutation;
            for (int i = 0; i < type.shape.rank(); ++i) {
                type.shape[i] = result.type(from).shape[order[i]];
            }
            result.set_type(made.result(), type);
        }
        result.body.body.push_back(std::move(made));
    }
    const ir::Shape tile = result.type(found.dot->result()).shape;
    b.store(to, part_of(part, positions_along(b, batch, 1), begins, tile), found.dot->result());
    b.yield({});
    ir::dce(result);
    return result;
}

/// Scalars that follow from positions and constants.
bool is_position(const ir::Function& kernel, const ir::Instruction& made,
                 const std::set<ir::Value>& positions) {
    return made.results.size() == 1 && kernel.type(made.result()).is_scalar() &&
           (made.op == ir::Op::constant || made.op == ir::Op::program_id ||
            made.op == ir::Op::extent ||
            (ir::is_elementwise(made.op) &&
             std::all_of(made.operands.begin(), made.operands.end(),
                         [&](ir::Value operand) { return positions.contains(operand); })));
}

/// Adds the parts in place of the product.
std::optional<ir::Function> finish_of(const ir::Function& kernel, const Found& found,
                                      const ir::RefType& sums, const std::vector<int>& batch) {
    ir::Function result = kernel;
    result.name += "_finish";
    const ir::Value from = result.add_parameter(sums, "sums");
    std::vector<ir::Instruction> body = std::move(result.body.body);
    result.body.body.clear();
    const Begins begins = begins_of(kernel, *found.store);
    // The positions of blocks first, since the parts are loaded where the product was.
    std::set<ir::Value> positions;
    for (const ir::Instruction& made : body) {
        if (!is_position(kernel, made, positions)) continue;
        positions.insert(made.result());
        result.body.body.push_back(made);
    }
    if (!positions.contains(begins.row) || !positions.contains(begins.column)) return std::nullopt;
    ir::Builder b(result);
    const ir::Shape tile = kernel.type(found.dot->result()).shape;
    ir::Value sum;
    for (ir::Instruction& made : body) {
        if (made.results.size() == 1 && positions.contains(made.result())) continue;
        if (made.op == ir::Op::dot) {
            const std::vector<ir::Value> places = positions_along(b, batch, 0);
            for (std::int64_t i = 0; i < sums.extents[0]; ++i) {
                const ir::Value part = b.constant_int({DType::i64, {}}, i);
                const ir::Value one = b.load(from, part_of(part, places, begins, tile));
                sum = sum ? b.binary(ir::Op::add, sum, one) : one;
            }
            continue;
        }
        for (ir::Value& operand : made.operands) {
            if (operand == found.dot->result()) operand = sum;
        }
        result.body.body.push_back(std::move(made));
    }
    ir::dce(result);
    return result;
}

/// Grid axes of several programs that do not count blocks, as those of a batch; nothing where one
/// depends on the call, or there are too many.
std::optional<std::vector<int>> batch_axes(const ir::Function& kernel, const MergedBlocks& merged) {
    std::vector<int> axes;
    for (int axis = 0; axis < std::ssize(kernel.grid); ++axis) {
        const bool of_blocks = std::count(merged.axes.begin(), merged.axes.end(), axis) > 0;
        if (of_blocks || kernel.grid[axis] == 1) continue;
        if (kernel.grid[axis] == ir::kDynamic) return std::nullopt;
        axes.push_back(axis);
    }
    constexpr std::size_t kOthers = 3;  // dimensions of the sums: parts, rows and columns
    if (axes.size() + kOthers > ir::kMaxRefRank) return std::nullopt;
    return axes;
}

/// Few rows to a program, so that all multiprocessors have some.
ir::Function cut_finish(const ir::Function& finish, const MergedBlocks& merged) {
    constexpr std::int64_t kRows = 8, kColumns = 128;
    ir::Function cut = finish;
    ir::RetileOptions options;
    options.schedule = ir::RetileOptions::Schedule::grid;
    options.rows = kRows;
    options.columns = kColumns;
    options.extents = merged.extents;
    if (!ir::try_retile(cut, options).refusal.empty()) return finish;
    return remove_merged_axes(cut, merged, finish.grid.size()) ? cut : finish;
}

}  // namespace

std::optional<SplitProduct> split_product(const ir::Function& kernel, std::int64_t parts) {
    const ir::Function source = whole_product(kernel);
    const auto merged = mergeable_blocks(source);
    const auto found = Search(source).run();
    if (!merged || !found || parts < 2) return std::nullopt;
    const auto batch = batch_axes(source, *merged);
    if (!batch) return std::nullopt;
    const DType operands = source.type(found->dot->operands[0]).dtype;
    const std::int64_t step = kStepBytes / size_of(operands);
    const std::int64_t steps = ceil_div(found->depth, step);
    const std::int64_t chunk = ceil_div(steps, parts) * step;
    const std::int64_t whole = ceil_div(found->depth, chunk);
    if (whole < 2) return std::nullopt;
    constexpr std::int64_t kVector = 4;  // elements of 16 bytes
    SplitProduct split;
    split.sums.dtype = source.type(found->dot->result()).dtype;
    split.sums.extents = {whole};
    for (const int axis : *batch) split.sums.extents.push_back(source.grid[axis]);
    split.sums.extents.push_back(merged->extents[0]);
    split.sums.extents.push_back(ceil_div(merged->extents[1], kVector) * kVector);
    split.parts = parts_of(source, *found, split.sums, *batch, chunk);
    auto finish = finish_of(source, *found, split.sums, *batch);
    if (!finish) return std::nullopt;
    split.finish = cut_finish(*finish, *merged);
    return split;
}

std::int64_t parts_of_product(const ir::Function& kernel, const std::string& arch) {
    constexpr std::int64_t kMostParts = 16, kFewestSteps = 8;
    constexpr double kGain = 0.95;  // estimates are not exact, and results differ in the last bits
    if (!is_for(arch) || !split_product(kernel, 2)) return 1;
    double best = 0;
    std::int64_t chosen = 1;
    for (std::int64_t parts = 1; parts <= kMostParts; parts *= 2) {
        for (const Tile& tile : product_tiles(kernel)) {
            const Prepared cut = prepare_for_wgmma(kernel, tile);
            if (!cut.refusal.empty()) continue;
            const ProductWork work = work_of(cut.kernel);
            if (work.tiles == 0 || (parts > 1 && work.steps < kFewestSteps * parts)) continue;
            const std::int64_t elements = work.tiles * tile.rows * tile.columns;
            const double clocks = parts == 1 ? kGain * clocks_of(work, tile)
                                             : clocks_of_parts(work, tile, parts, elements);
            if (best > 0 && clocks >= best) continue;
            best = clocks;
            chosen = parts;
        }
    }
    return chosen;
}

}  // namespace tilewright::cuda::schedule
