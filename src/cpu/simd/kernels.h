// The vector kernels of the tile machine: one table per instruction set, chosen at run time.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cpu/simd/fused.h"
#include "ir/op.h"
#include "tilewright/dtype.h"

namespace tilewright::cpu {

// A strip is a rectangle of `rows` x `lanes` elements, with contiguous lanes (the vectorised axis).
// The same kernel takes full tiles, lane vectors (one row for all rows), row scalars (one element
// for all lanes) and scalars, as the strides of the operand say.

/// Element (r, l) of an operand is at data + (r * row_stride + l * lane_stride) * element size.
struct StripOperand {
    const void* data = nullptr;  ///< nullptr: no operand; its strides stay unset to save time
    std::int64_t row_stride;     ///< in elements; 0: every row is the same
    std::int64_t lane_stride;    ///< 1, or 0: one element for the whole row
};

struct Strip {
    std::int64_t rows = 0;
    std::int64_t lanes =
        0;  ///< any number; kernels may read and write up to the next multiple of 64
            ///< bytes after the last lane of their OWN buffers only (see padded)
    StripOperand in[4];
    void* out = nullptr;
    std::int64_t out_row_stride = 0;
    bool padded = false;  ///< rows of tile operands and out are padded: no tail handling needed
    double immediate[4] = {};     ///< constants of superinstructions and arg reductions
    void* accumulator = nullptr;  ///< second result of superinstructions and arg reductions
};

/// f16, bf16 and f8 elements are widened to f32, computed, and rounded to nearest even. bool is one
/// byte, 0 or 1.
using StripFunction = void (*)(const Strip&);

/// C[m][n] (+)= sum over k of A(m, k) * B[k][n]: B and C have contiguous lanes (n), elements of A
/// are broadcast, so A may be row-major or k-major and is never packed.
struct GemmArgs {
    std::int64_t m = 0, n = 0, k = 0;
    const void* a = nullptr;
    std::int64_t a_row = 0, a_col = 0;  ///< A(m, k) at a[m * a_row + k * a_col]
    const void* b = nullptr;
    std::int64_t ldb = 0;
    void* c = nullptr;
    std::int64_t ldc = 0;
    bool accumulate = false;  ///< false: C is written without being read
    /// With `accumulate`, C(m, n) is first multiplied by row_scale[m] or lane_scale[n], where one
    /// is not nullptr; they are of C's type.
    const void* row_scale = nullptr;
    const void* lane_scale = nullptr;
    /// Not nullptr: the likely address of the next product's A, in the layout of this one, which
    /// has a_row == 1. It is prefetched, never read, and may be outside any array.
    const void* next_a = nullptr;
    /// C is in an array, and probably in no cache. Stores wait for one line after the other, so
    /// lines are prefetched before the products that go there.
    bool prefetch_c = false;
    /// Not nullptr: maxima[n] becomes the maximum of itself and the new C(m, n) of all m; NaN
    /// propagates. Only for `Kernels::gemm_bf16_pairs`, where `finds_maxima` says so.
    float* maxima = nullptr;
};
using GemmFunction = void (*)(const GemmArgs&);

/// The factor of C(m, n) before a product is added to it.
template <typename T>
T scale_of(const GemmArgs& g, std::int64_t m, std::int64_t n) {
    if (g.row_scale) return static_cast<const T*>(g.row_scale)[m];
    return g.lane_scale ? static_cast<const T*>(g.lane_scale)[n] : T{1};
}

/// Chains of elementwise ops that run as one pass. All operands are f32, and so is `out` unless the
/// name ends in another dtype, to which it is then rounded. Tiles have lane_stride 1; the operands
/// called lane operands may have any form. Each rounds as the ops that it stands for, but may
/// contract a multiplication and an addition into one rounding. `out` may be the tile operand
/// itself.
struct Superinstructions {
    /// out = exp2(in[0] * c - in[1]), where in[1] is a lane operand and c the lane operand in[2],
    /// or immediate[0] where there is none; accumulator[l] (f32, may be nullptr) += the sum of the
    /// results over rows. Relative error 2^-22; results below 2^-126 may be 0, and exp2(-inf) is.
    /// NaN gives NaN.
    StripFunction exp2_sum = nullptr, exp2_sum_bf16 = nullptr, exp2_sum_f16 = nullptr;
    /// The same for an even number of rows, with out[k2][l] = the results of rows 2 k2 and 2 k2 +
    /// 1, rounded to bf16 (out_row_stride counts pairs). nullptr where the table has no
    /// gemm_bf16_pairs.
    StripFunction exp2_sum_pairs = nullptr;

    /// out = base + a * r + b * l >= 0 ? in[0] : value, with immediate = {base, a, b, value}; base,
    /// a and b are integers below 2^53.
    StripFunction affine_select = nullptr;

    /// out = in[0] * immediate[3] + in[1] * (base + a * r + b * l), where in[1] is a lane operand
    /// and the other immediates are {base, a, b}. If given, accumulator[l] = max(accumulator[l],
    /// column l of out).
    StripFunction affine_add = nullptr;

    /// out = immediate[0] * tanh(in[0] * immediate[1]).
    StripFunction softcap = nullptr;

    /// out = in[0] * (in[1] - in[2]) * immediate[0], where in[2] is a lane operand: P * (dP -
    /// delta) * scale.
    StripFunction mul_sub_mul = nullptr, mul_sub_mul_bf16 = nullptr, mul_sub_mul_f16 = nullptr;

    /// P and dS of attention in bf16, as one pass: exp2_sum and then mul_sub_mul with the factor 1,
    /// the probabilities 0 where an affine form of the call is negative, both results written as
    /// pairs of rows and dS also as rows. An even number of rows, at least 64 lanes. Operands:
    /// scores, shift, dP, delta, P's pairs, dS's rows, dS's pairs; steps[0].immediate is c.
    /// Subnormal results are 0. nullptr: there is none.
    void (*gradient_pairs)(const FusedCall& call) = nullptr;
};

/// A line to be put in order, its elements side by side, like those of the results. A NaN comes
/// after every number, zeros of both signs are equal, and equal elements keep their order in both
/// directions.
struct SortLine {
    const void* in = nullptr;
    std::int64_t length = 0;
    std::int64_t count = 0;  ///< of the results: the first of them in order
    bool descending = false;
    void* out = nullptr;             ///< the elements; nullptr: not wanted
    std::int32_t* places = nullptr;  ///< where they stood; likewise
    void* work = nullptr;            ///< sort_work(length) bytes, of the alignment of 8
};
using SortFunction = void (*)(const SortLine&);

/// Two elements of 8 bytes for each of the line's, and vectors after their ends.
constexpr std::int64_t sort_work(std::int64_t length) {
    return 2 * 8 * (length + 64);
}

struct Kernels {
    std::string_view name;  ///< "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon"
    int vector_bytes = 0;

    /// Elementwise op; for cast and bitcast `in` is the source dtype, for comparisons the
    /// operands'. select: in[0] is the bool. nullptr: the op does not exist for these dtypes.
    StripFunction (*elementwise)(ir::Op op, DType in, DType out, bool approx) = nullptr;

    /// out[l] = combine(out[l], in[0](0, l), in[0](1, l), ...): reduction over rows, lane by lane.
    /// Accumulates into `out`, which the caller initialises with the identity. f16, bf16 and f8
    /// accumulate in f32: their `out` is f32. sum, prod, max, min; any and all of booleans.
    StripFunction (*reduce_rows)(ir::Reduction kind, DType dtype) = nullptr;
    /// out[r * out_row_stride] = combine over lanes of row r (accumulates likewise), in an order
    /// that depends only on `lanes`.
    StripFunction (*reduce_lanes)(ir::Reduction kind, DType dtype) = nullptr;
    /// Running combinations, in `dtype`: out(r, l) = accumulator[l], which then holds the last one,
    /// combined with in[0](0, l) to in[0](r, l). immediate[0] not 0: in reverse; [1]: out(r, l)
    /// excludes in[0](r, l); [2]: from array to array; [3]: the result goes past the caches.
    StripFunction (*scan_rows)(ir::Reduction kind, DType dtype) = nullptr;
    /// The same along the lanes of each row, with accumulator[r]. Floats are combined in an order
    /// that depends on `lanes` and, for logsumexp, on the values. In reverse, the last row of a
    /// strip comes first.
    StripFunction (*scan_lanes)(ir::Reduction kind, DType dtype) = nullptr;
    /// From f16 or bf16 to the same dtype; the carries are f32. May be nullptr or give nullptr.
    StripFunction (*scan_lanes_in_f32)(ir::Reduction kind, DType dtype) = nullptr;
    /// argmax and argmin over rows: out[l] is the best value so far (in the dtype of the input) and
    /// accumulator[l] its index (i32), negative while there is none. Row r has index immediate[0] +
    /// r. The first of equal values wins; NaN wins over every number.
    StripFunction (*arg_reduce_rows)(ir::Reduction kind, DType dtype) = nullptr;
    /// The same over the lanes of each row: the results of row r are at r * out_row_stride of out
    /// and of accumulator; lane l has index immediate[0] + l.
    StripFunction (*arg_reduce_lanes)(ir::Reduction kind, DType dtype) = nullptr;

    /// Exists for every dtype.
    SortFunction (*sort)(DType dtype) = nullptr;

    /// a, b and c of the type in the name; integers wrap around, so that these are the functions of
    /// unsigned ones, too.
    GemmFunction gemm_f32 = nullptr;
    GemmFunction gemm_f64 = nullptr;
    GemmFunction gemm_i32 = nullptr;
    GemmFunction gemm_i64 = nullptr;
    /// f32, with a_col == 1 and B(k, n) at b[n * ldb + k]: rows of B are multiplied in place. For
    /// few rows of A. nullptr where the table has none.
    GemmFunction gemm_rows_f32 = nullptr;
    /// bf16 pairs along k, C f32: A32(m, k2) at ((u32*)a)[m * a_row + k2 * a_col], B32[k2][n] holds
    /// (B[2 k2][n], B[2 k2 + 1][n]); `k` counts pairs. nullptr where the machine has no bf16 dot;
    /// bf16 is then widened to f32 tiles.
    GemmFunction gemm_bf16_pairs = nullptr;
    /// True where it takes GemmArgs::maxima.
    bool finds_maxima = false;
    /// i16 pairs along k, C i32, laid out like those of bf16. nullptr: i16 is widened to i32 tiles.
    GemmFunction gemm_i16_pairs = nullptr;
    /// Quads of i8 or u8 along k, C i32: A32(m, k4) at ((u32*)a)[m * a_row + k4 * a_col],
    /// B32[k4][n] holds B[4 k4][n] to B[4 k4 + 3][n]; `k` counts quads. nullptr where the machine
    /// has no product of bytes; they are then widened to i16 pairs.
    GemmFunction (*gemm_i8_quads)(bool a_signed, bool b_signed) = nullptr;
    /// True when the products of pairs of bf16 and of quads need a_col == 1 (AMX tiles).
    bool wants_k_contiguous = false;

    /// out = in[0], or only where the bool in[1] is true: other bytes are never written.
    StripFunction (*store)(DType dtype, bool masked) = nullptr;
    /// out = in[0] by non-temporal stores, invisible to other threads until hwy::FlushStream().
    StripFunction (*stream)(DType dtype) = nullptr;

    /// out[k2][n] = (in[2 k2][n], in[2 k2 + 1][n]) of bf16 (`rows` counts rows of in; an odd last
    /// row is paired with zeros; out_row_stride counts pairs), from f32 rows (rounded) or bf16
    /// rows; or of an even number of i16 rows.
    StripFunction (*interleave_pairs)(DType in) = nullptr;
    /// out[k4][n] = (in[4 k4][n], ..., in[4 k4 + 3][n]) of bytes; `rows` is a multiple of 4.
    StripFunction (*interleave_quads)() = nullptr;
    /// out[l][r] = in[0](r, l), converted from `in` to `out` (the same dtype, or f16/bf16/f32 ->
    /// f32/bf16).
    StripFunction (*transpose)(DType in, DType out) = nullptr;

    Superinstructions super;
    FusedKernels fused;
};

/// The best table for this machine, or the one that TILEWRIGHT_TARGET names; UserError with a list
/// of the available tables when it names none of them.
const Kernels& kernels();
/// Makes kernels() return a table of vector kernels, whether or not this machine has their
/// instructions, for a program that compiles functions and runs none. Before any other call.
void compile_for_any_machine();
/// A table by name; nullptr when this build or machine does not have it. "scalar" always exists,
/// and so does "scalar_amx", which needs tiles as AMX does: for tests on other machines.
const Kernels* find_kernels(std::string_view name);
/// Every table that this build and machine can run, the best first, "scalar" last.
const std::vector<const Kernels*>& available_kernels();

}  // namespace tilewright::cpu
