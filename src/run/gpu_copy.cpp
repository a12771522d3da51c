// Copies between strided arrays of one GPU, with conversion of dtypes, as a tile program.
#include "run/gpu_copy.h"

#include <algorithm>
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

constexpr std::int64_t kBlock = 1024;  ///< elements

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

/// Copies a block of the last two dimensions, or of the only one.
void copy_program(Ref source, Ref target, std::int64_t rows, std::int64_t columns) {
    const int rank = source.rank();
    std::vector<RefIndex> index;
    for (int d = 0; d < rank; ++d) index.emplace_back(program_id(d));
    if (rows > 1) index[rank - 2] = ds(program_id(rank - 2) * rows, rows);
    index[rank - 1] = ds(program_id(rank - 1) * columns, columns);
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
    const std::int64_t innermost = dimensions.back().extent;
    std::int64_t columns = innermost > 512 ? kBlock : innermost > 64 ? 128 : 32;
    if (nearest != dimensions.end() - 1 && nearest->source != 0) {
        std::rotate(nearest, nearest + 1, dimensions.end() - 1);
        columns = 32;
    }
    if (dimensions.size() == 1) columns = kBlock;
    return {view_of(target, dimensions, &Dimension::target),
            view_of(source, dimensions, &Dimension::source), kBlock / columns, columns};
}

Call copy_call(const CopyPlan& plan) {
    const int rank = plan.target.rank();
    const DType dtype = plan.target.dtype();
    const std::int64_t rows = plan.rows, columns = plan.columns;
    CallOptions options;
    options.grid = [=](std::span<const Tensor> in) {
        std::vector<std::int64_t> grid(in[0].shape().begin(), in[0].shape().end());
        grid.back() = ceil_div(grid.back(), columns);
        if (rank > 1) grid[rank - 2] = ceil_div(grid[rank - 2], rows);
        return grid;
    };
    options.out_type = [dtype](std::span<const Tensor> in) {
        return std::vector<TensorType>{{dtype, in[0].shape()}};
    };
    std::vector<int> dims;
    for (int d = 0; d < rank; ++d) dims.push_back(d);
    options.dynamic = {{0, dims}, {1, dims}};
    options.num_warps = 4;
    return call(
        kernel("copy", {"source", "target"},
               [=](Ref source, Ref target) { copy_program(source, target, rows, columns); }),
        options);
}

void copy_elements_on_gpu(const Tensor& target, const Tensor& source) {
    const CopyPlan plan = plan_copy(target, source);
    const Call copy = cached(std::tuple(plan.target.rank(), plan.target.dtype(), plan.columns),
                             [&] { return copy_call(plan); });
    copy.into({plan.target}, {plan.source});
}

}  // namespace tilewright::run
