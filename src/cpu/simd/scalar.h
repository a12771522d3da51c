// The scalar table's kernels, one lookup per group. Other tables fall back to them.
#pragma once

#include "cpu/simd/kernels.h"

namespace tilewright::cpu {

/// Any elementwise op; nullptr when the op does not exist for these dtypes.
StripFunction scalar_elementwise(ir::Op op, DType in, DType out, bool approx);

StripFunction scalar_unary(ir::Op op, DType in, DType out);
StripFunction scalar_binary(ir::Op op, DType in, DType out);
StripFunction scalar_comparison(ir::Op op, DType in, DType out);
StripFunction scalar_ternary(ir::Op op, DType in, DType out);
StripFunction scalar_cast(DType in, DType out);
StripFunction scalar_bitcast(DType in, DType out);

StripFunction scalar_reduce_rows(ir::Reduction kind, DType dtype);
StripFunction scalar_reduce_lanes(ir::Reduction kind, DType dtype);
StripFunction scalar_scan_rows(ir::Reduction kind, DType dtype);
StripFunction scalar_scan_lanes(ir::Reduction kind, DType dtype);
StripFunction scalar_arg_reduce_rows(ir::Reduction kind, DType dtype);
StripFunction scalar_arg_reduce_lanes(ir::Reduction kind, DType dtype);

SortFunction scalar_sort(DType dtype);

StripFunction scalar_store(DType dtype, bool masked);
StripFunction scalar_interleave_pairs(DType in);
StripFunction scalar_interleave_quads();
StripFunction scalar_transpose(DType in, DType out);

void scalar_gemm_f32(const GemmArgs& args);
void scalar_gemm_f64(const GemmArgs& args);
void scalar_gemm_i32(const GemmArgs& args);
void scalar_gemm_i64(const GemmArgs& args);
void scalar_gemm_bf16_pairs(const GemmArgs& args);
void scalar_gemm_i16_pairs(const GemmArgs& args);
GemmFunction scalar_gemm_i8_quads(bool a_signed, bool b_signed);

const Superinstructions& scalar_superinstructions();

}  // namespace tilewright::cpu
