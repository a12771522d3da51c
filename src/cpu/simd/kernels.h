// The vector kernels of the tile machine: one table per instruction set, chosen at run time.
#pragma once

#include <cstdint>
#include <string_view>

#include "ir/op.h"
#include "tilewright/dtype.h"

namespace tilewright::cpu {

// A strip is a rectangle of `rows` x `lanes` elements, lanes contiguous (the vectorised axis). The
// same kernel serves full tiles, lane vectors (one row for all rows), row scalars (one element for
// all lanes) and scalars: the operand's strides say which.

/// Element (r, l) of an operand lies at data + (r * row_stride + l * lane_stride) * element size.
struct StripOperand {
    const void* data = nullptr;
    std::int64_t row_stride = 0;   ///< in elements; 0: every row is the same
    std::int64_t lane_stride = 1;  ///< 1, or 0: one element for the whole row
};

struct Strip {
    std::int64_t rows = 0;
    std::int64_t lanes = 0;  ///< any number; kernels may read and write up to the next multiple of 64
                             ///< bytes behind the last lane of their OWN buffers only (see padded)
    StripOperand in[4];
    void* out = nullptr;
    std::int64_t out_row_stride = 0;
    bool padded = false;       ///< rows of tile operands and out are padded: no tail handling needed
    double immediate[2] = {};  ///< constants of superinstructions
};

/// f16, bf16 and f8 elements are widened to f32, computed, and rounded to nearest even. bool is one
/// byte, 0 or 1.
using StripFunction = void (*)(const Strip&);

/// C[m][n] (+)= sum over k of A(m, k) * B[k][n]: B and C have their lanes (n) contiguous, elements of
/// A are broadcast, so A may lie row-major or k-major and is never packed.
struct GemmArgs {
    std::int64_t m = 0, n = 0, k = 0;
    const void* a = nullptr;
    std::int64_t a_row = 0, a_col = 0;  ///< A(m, k) at a[m * a_row + k * a_col]
    const void* b = nullptr;
    std::int64_t ldb = 0;
    void* c = nullptr;
    std::int64_t ldc = 0;
    bool accumulate = false;  ///< false: C is written without being read
};
using GemmFunction = void (*)(const GemmArgs&);

struct Kernels {
    std::string_view name;  ///< "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon"
    int vector_bytes = 0;

    /// Elementwise op; for cast and bitcast `in` is the source dtype, for comparisons the operands'.
    /// select: in[0] is the bool. nullptr: the op does not exist for these dtypes.
    StripFunction (*elementwise)(ir::Op op, DType in, DType out, bool approx) = nullptr;

    /// out[l] = combine(out[l], in[0](0, l), in[0](1, l), ...): reduction over rows, lane by lane.
    /// Accumulates into `out` (the caller starts it with the identity).
    StripFunction (*reduce_rows)(ir::Reduction kind, DType dtype) = nullptr;
    /// out[r * out_row_stride] = combine over lanes of row r (accumulates likewise), in an order that
    /// depends on `lanes` alone.
    StripFunction (*reduce_lanes)(ir::Reduction kind, DType dtype) = nullptr;

    /// C f32. a, b, c of f32; a, b, c of f64.
    GemmFunction gemm_f32 = nullptr;
    GemmFunction gemm_f64 = nullptr;
    /// bf16 pairs along k, C f32: A32(m, k2) at ((u32*)a)[m * a_row + k2 * a_col], B32[k2][n] holds
    /// (B[2 k2][n], B[2 k2 + 1][n]); `k` counts pairs. nullptr where the machine has no bf16 dot; then
    /// bf16 is widened to f32 tiles.
    GemmFunction gemm_bf16_pairs = nullptr;
    /// True when gemm_bf16_pairs wants a_col == 1 (AMX tiles).
    bool bf16_wants_k_contiguous = false;

    /// out[k2][n] = (in[2 k2][n], in[2 k2 + 1][n]) of bf16 (`rows` counts rows of in; an odd last row
    /// is paired with zeros), from f32 rows (rounded) or bf16 rows.
    StripFunction (*interleave_pairs)(DType in) = nullptr;
    /// out[l][r] = in[0](r, l), converting in -> out dtype (same dtype, or f16/bf16/f32 -> f32/bf16).
    StripFunction (*transpose)(DType in, DType out) = nullptr;
};

/// The best table this machine can run, or the one TILEWRIGHT_TARGET names.
const Kernels& kernels();
/// A table by name; nullptr when this build or machine does not have it. "scalar" always exists.
const Kernels* find_kernels(std::string_view name);

}  // namespace tilewright::cpu
