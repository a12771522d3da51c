// Softmax of rows as a tile program.
#include "cli/softmax.h"

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "tilewright/lang.h"

namespace tilewright::cli {

Call softmax(std::int64_t n, bool gpu) {
    // On a GPU, programs wait for memory in parallel, so a row that fills some warps is a program.
    // On a CPU, a program prefetches its next row while it works, so it has many rows.
    const std::int64_t rows = gpu && n >= 1024 ? 1 : 8;
    const std::int64_t most = gpu ? std::numeric_limits<std::int64_t>::max() : 512;
    CallOptions options;
    options.grid = [rows, most](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{std::min((in[0].dim(0) + rows - 1) / rows, most)};
    };
    options.out_type = [](std::span<const Tensor> in) {
        return std::vector<TensorType>{{in[0].dtype(), in[0].shape()}};
    };
    options.dynamic = {{0, {0}}, {1, {0}}};
    return call(
        kernel("softmax", {"x", "y"},
               [n, rows, gpu](Ref x, Ref y) {
                   const DType sums = x.dtype() == f64 ? f64 : f32;
                   const auto do_row = [&](const Tile& r) {
                       const Tile row = x.at(r, ds(0, n)).load().to(sums);
                       const Tile weights = exp(row - max(row), gpu && size_of(y.dtype()) <= 2);
                       const Tile inverse = 1.0 / sum(weights);
                       y.at(r, ds(0, n)).store((weights * inverse).to(y.dtype()));
                   };
                   if (rows == 1) return do_row(program_id(0));
                   const Tile total = x.extent(0), count = cdiv(total, num_programs(0));
                   const Tile first = program_id(0) * count;
                   for_loop(first, minimum(first + count, total), [&](Tile r) { do_row(r); });
               }),
        options);
}

}  // namespace tilewright::cli
