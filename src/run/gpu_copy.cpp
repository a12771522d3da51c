// Copies between strided arrays of one GPU, with conversion of dtypes, as a tile program.
#include "run/gpu_copy.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <tuple>
#include <vector>

#include "run/call_cache.h"
#include "run/cuda_memory.h"
#include "support/integer.h"
#include "tilewright/lang.h"

namespace tilewright::run {
namespace {

constexpr std::int64_t kBlock = 1024;     ///< elements
constexpr std::int64_t kNeighbours = 32;  ///< read or written by one warp at once

struct Dimension {
    std::int64_t extent, target, source;  ///< strides
};

/// Those of more than one index, from the largest stride of the target to the smallest.
std::vector<Dimension> ordered_dimensions(const Tensor& target, const Tensor& source) {
    std::vector<Dimension> ordered;
    for (int d = 0; d < target.rank(); ++d) {
        if (target.dim(d) > 1)
            ordered.push_back({target.dim(d), target.strides()[d], source.strides()[d]});
    }
    std::stable_sort(ordered.begin(), ordered.end(), [](const Dimension& a, const Dimension& b) {
        return std::abs(a.target) > std::abs(b.target);
    });
    return ordered;
}

/// The same elements, with dimensions that are contiguous in both arrays as one. Not empty.
std::vector<Dimension> joined(const std::vector<Dimension>& dimensions) {
    std::vector<Dimension> result;
    for (const Dimension& inner : dimensions) {
        if (!result.empty() && result.back().target == inner.target * inner.extent &&
            result.back().source == inner.source * inner.extent) {
            result.back() = {result.back().extent * inner.extent, inner.target, inner.source};
        } else {
            result.push_back(inner);
        }
    }
    if (result.empty()) result.push_back({1, 1, 1});
    return result;
}

Tensor view_of(const Tensor& tensor, const std::vector<Dimension>& dimensions,
               std::int64_t Dimension::*stride) {
    Tensor::Dims shape, strides;
    for (const Dimension& each : dimensions) {
        shape.push_back(each.extent);
        strides.push_back(each.*stride);
    }
    return Tensor::from_data(tensor.raw(), tensor.dtype(), shape, strides, tensor.owner(),
                             tensor.device());
}

/// Places of a block along a dimension: the largest power of two up to `most` that leaves at most
/// a fifth of the lanes idle, or that which leaves the fewest idle; not fewer than `least` where
/// the dimension is that long.
std::int64_t block_along(std::int64_t extent, std::int64_t least, std::int64_t most) {
    const auto bit_ceil = [](std::int64_t n) {
        return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
    };
    std::int64_t best = std::min(most, bit_ceil(extent));
    const auto lanes = [&](std::int64_t block) { return ceil_div(extent, block) * block; };
    for (std::int64_t block = best; block >= std::min(least, bit_ceil(extent)); block /= 2) {
        if (4 * lanes(block) <= 5 * extent) return block;
        if (lanes(block) < lanes(best)) best = block;
    }
    return best;
}

/// Copies a block.
void copy_program(Ref source, Ref target, const std::vector<std::int64_t>& block) {
    std::vector<RefIndex> index;
    for (int d = 0; d < source.rank(); ++d) {
        const Tile first = program_id(d) * block[d];
        index.push_back(block[d] > 1 ? RefIndex(ds(first, block[d])) : RefIndex(first));
    }
    target.select(index).store(source.select(index).load().to(target.dtype()));
}

}  // namespace

CopyPlan plan_copy(const Tensor& target, const Tensor& source) {
    std::vector<Dimension> dimensions = joined(ordered_dimensions(target, source));
    // Where the source's elements lie side by side; a stride of 0 repeats one of them.
    const auto nearest = std::min_element(
        dimensions.begin(), dimensions.end(), [](const Dimension& a, const Dimension& b) {
            const auto distance = [](const Dimension& each) {
                return each.source == 0 ? std::numeric_limits<std::int64_t>::max()
                                        : std::abs(each.source);
            };
            return distance(a) < distance(b);
        });
    const bool transposes = nearest != dimensions.end() - 1 && nearest->source != 0;
    if (transposes) std::rotate(nearest, nearest + 1, dimensions.end() - 1);
    const std::size_t rank = dimensions.size();
    std::vector<std::int64_t> block(rank, 1);
    std::int64_t left = kBlock;
    const auto choose = [&](std::size_t d, std::int64_t least, std::int64_t most) {
        block[d] = block_along(dimensions[d].extent, least, most);
        left /= block[d];
    };
    if (transposes) {
        // Square, unless one side is short.
        const std::int64_t rows = dimensions[rank - 2].extent;
        choose(rank - 1, kNeighbours, rows < kNeighbours ? kBlock / 4 : kNeighbours);
        choose(rank - 2, kNeighbours, left);
    } else {
        choose(rank - 1, kNeighbours, kBlock);
    }
    for (std::size_t d = rank - 1; d-- > 0;) {
        if (block[d] == 1) choose(d, 1, left);
    }
    return {view_of(target, dimensions, &Dimension::target),
            view_of(source, dimensions, &Dimension::source), block};
}

Call copy_call(const CopyPlan& plan) {
    const int rank = plan.target.rank();
    const DType dtype = plan.target.dtype();
    CallOptions options;
    options.grid = [block = plan.block](std::span<const Tensor> in) {
        std::vector<std::int64_t> grid;
        for (std::size_t d = 0; d < block.size(); ++d)
            grid.push_back(ceil_div(in[0].dim(static_cast<int>(d)), block[d]));
        return grid;
    };
    options.out_type = [dtype](std::span<const Tensor> in) {
        return std::vector<TensorType>{{dtype, in[0].shape()}};
    };
    std::vector<int> dims;
    for (int d = 0; d < rank; ++d) dims.push_back(d);
    options.dynamic = {{0, dims}, {1, dims}};
    options.num_warps = 4;
    return call(kernel("copy", {"source", "target"},
                       [block = plan.block](Ref source, Ref target) {
                           copy_program(source, target, block);
                       }),
                options);
}

void copy_elements_on_gpu(const Tensor& target, const Tensor& source) {
    const CopyPlan plan = plan_copy(target, source);
    const Call copy =
        cached(std::tuple(plan.target.dtype(), plan.block), [&] { return copy_call(plan); });
    copy.into({plan.target}, {plan.source});
}

}  // namespace tilewright::run
