// The kernels of `tilewright bench cpu` as plain C++ loops, for comparison.
#pragma once

#include <cstdint>

namespace tilewright::cli {

/// Arrays (dense, row-major) and sizes of a kernel, in the order that its loop states.
struct PlainArgs {
    const void* in[4] = {};
    void* out[2] = {};
    std::int64_t size[6] = {};
};

/// Computes units [begin, end) of the kernel, usually rows, which threads may divide among them.
using PlainLoop = void (*)(const PlainArgs&, std::int64_t begin, std::int64_t end);

/// The loops, all in plain C++ that the compiler may vectorise.
struct PlainLoops {
    const char* level;  ///< the instruction set that they are compiled for
    PlainLoop add, scale_shift_relu, bias_gelu_residual, softmax, layer_norm, group_norm;
    PlainLoop rotary, transpose, prefix_mask;
    PlainLoop cumsum_f32, cumsum_i32, cumsum_rows, cummax, cumlogsumexp, linear_recurrence;
    PlainLoop top_k, sort, sliding_sum;
    PlainLoop depthwise, stencil, blur, jacobi;
    PlainLoop segment_sum, histogram, embedding, embedding_gradient, sparse_rows;
    PlainLoop matmul_f32, matmul_i8, matmul_i32, matmul_f8, cholesky, lu;
    PlainLoop int4_matmul, kmeans;
};

extern const PlainLoops kPlainLoopsDefault;
#if defined(__x86_64__)
extern const PlainLoops kPlainLoopsV3, kPlainLoopsV4;
#endif

/// The loops compiled for the highest level that this machine supports, or for AVX2 if the tile
/// machine is asked to use that.
const PlainLoops& plain_loops();

}  // namespace tilewright::cli
