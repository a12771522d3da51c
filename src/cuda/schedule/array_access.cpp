// Operands and attributes of accesses to arrays by their parts.
#include "cuda/schedule/array_access.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/access.h"

namespace tilewright::cuda::schedule {

bool is_array_access(const Instruction& made) {
    return made.is(Op::targets) || made.is(Op::copy_tile) ||
           (made.op == Op::tile && ir::is_access(made.tile));
}

std::size_t values_of_access(const Instruction& made) {
    if (made.is(Op::targets)) return 0;
    if (made.is(Op::copy_tile)) return made.has("slotted") ? 1 : 0;
    if (made.is(ir::Op::load)) return made.has("into") ? 1 : 0;
    return made.is(ir::Op::atomic_cas) ? 2 : 1;
}

ArrayAccess::ArrayAccess(const Program& program, const Instruction& made)
    : array(program.ref(made.symbol("of"))),
      sizes(made.list("index")),
      steps_(made.list("steps")),
      bounds_(made.list("bounds")) {
    const std::span<const Value> operands = made.operands;
    std::size_t next = sizes.size();
    indices = operands.first(next);
    if (made.has("masked")) mask = operands[next++];
    values = operands.subspan(next, values_of_access(made));
    if (made.has("other")) other = operands.back();

    for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
        if (sizes[dim] != kGathered) continue;
        tile_rank = std::max(tile_rank, program.type(indices[dim]).type.shape.rank());
    }
    int rank = 0, tile_axis = -1;
    for (const std::int64_t size : sizes) {
        if (size == 0) {
            axis.push_back(-1);
        } else if (size != kGathered) {
            axis.push_back(rank++);
        } else {
            if (tile_axis < 0) {
                tile_axis = rank;
                rank += tile_rank;
            }
            axis.push_back(tile_axis);
        }
    }
    vector = static_cast<int>(made.number("vector", 1));
    if (vector > 1 && bound(sizes.size() - 1) != Bound::none) {
        const std::int64_t extent = array.extents.back();
        cuts_vectors =
            size(sizes.size() - 1) % vector != 0 || extent == ir::kDynamic || extent % vector != 0;
    }
}

ir::Shape copied_shape(const ArrayAccess& access) {
    std::vector<std::int64_t> dims;
    for (std::size_t dim = 0; dim < access.sizes.size(); ++dim) {
        if (!access.is_scalar(dim)) dims.push_back(access.size(dim));
    }
    return ir::Shape(std::span<const std::int64_t>(dims));
}

Layout index_layout(const Layout& tile, int first, int rank, const ir::Shape& index) {
    Layout joint = tile;
    for (int a = tile.shape.rank() - 1; a >= 0; --a) {
        if (a < first || a >= first + rank) joint = joint.without(a);
    }
    return joint.narrowed(index);
}

std::string extent_text(const Parameter& array, int dim) {
    const std::int64_t extent = array.extents.at(static_cast<std::size_t>(dim));
    if (extent != ir::kDynamic) return fmt::format("{}ll", extent);
    return fmt::format("{}.extent[{}]", array.name, dim);
}

std::string stride_text(const Parameter& array, int dim) {
    const int rank = static_cast<int>(array.extents.size());
    std::int64_t dense = 1;
    for (int d = rank - 1; d > dim && dense > 0; --d) {
        const std::int64_t extent = array.extents[static_cast<std::size_t>(d)];
        dense = extent == ir::kDynamic ? -1 : dense * extent;
    }
    if (array.scratch) return fmt::format("{}", dense);
    if (dim == rank - 1 && array.vectors) return "1";
    if (array.dense && dense > 0) return fmt::format("{}ll", dense);
    return fmt::format("{}.stride[{}]", array.name, dim);
}

std::string data_text(const Parameter& array) {
    return array.name + (array.scratch ? "_data" : ".data");
}

}  // namespace tilewright::cuda::schedule
