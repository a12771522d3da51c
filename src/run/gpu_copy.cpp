// Copies between strided arrays of one GPU, with conversion of dtypes, as a tile program.
#include <tuple>

#include "run/call_cache.h"
#include "run/cuda_memory.h"
#include "support/integer.h"
#include "tilewright/lang.h"

namespace tilewright::run {
namespace {

constexpr std::int64_t kBlock = 1024;

/// Copies a block of elements in row-major order; those past the end exceed the first dimension.
void copy_program(Ref source, Ref target) {
    const int rank = source.rank();
    Tile rest = program_id(0) * kBlock + iota(kBlock, i64);
    std::vector<RefIndex> index(rank);
    for (int d = rank; d-- > 1;) {
        const Tile extent = source.extent(d);
        index[d] = rest % extent;
        rest = rest / extent;
    }
    index[0] = rest;
    target.select(index).store(source.select(index).load().to(target.dtype()));
}

Call copy_call(int rank, DType dtype) {
    CallOptions options;
    options.grid = [](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{ceil_div(in[0].size(), kBlock)};
    };
    options.out_type = [dtype](std::span<const Tensor> in) {
        return std::vector<TensorType>{{dtype, in[0].shape()}};
    };
    std::vector<int> dims;
    for (int d = 0; d < rank; ++d) dims.push_back(d);
    options.dynamic = {{0, dims}, {1, dims}};
    return call(kernel("copy", {"source", "target"}, copy_program), options);
}

}  // namespace

void copy_elements_on_gpu(const Tensor& target, const Tensor& source) {
    if (source.rank() == 0) {
        return copy_elements_on_gpu(target.expand_dims(0), source.expand_dims(0));
    }
    const Call copy = cached(std::tuple(source.rank(), target.dtype()),
                             [&] { return copy_call(source.rank(), target.dtype()); });
    copy.into({target}, {source});
}

}  // namespace tilewright::run
