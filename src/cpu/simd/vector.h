// The kernels that are written once in Highway and compiled per instruction set, by target.
#pragma once

#include "cpu/simd/kernels.h"

namespace tilewright::cpu {

/// Instruction sets for which the vector sources are compiled.
enum class Target : std::uint8_t { avx2, avx512, neon };

// Each returns nullptr where there is only the scalar function.
StripFunction vector_unary(Target target, ir::Op op, DType in);
/// Comparisons included.
StripFunction vector_binary(Target target, ir::Op op, DType in);
StripFunction vector_ternary(Target target, ir::Op op, DType in);
StripFunction vector_cast(Target target, DType in, DType out);
StripFunction vector_reduce_rows(Target target, ir::Reduction kind, DType dtype);
StripFunction vector_reduce_lanes(Target target, ir::Reduction kind, DType dtype);
StripFunction vector_scan_rows(Target target, ir::Reduction kind, DType dtype);
StripFunction vector_scan_lanes(Target target, ir::Reduction kind, DType dtype);
StripFunction vector_scan_lanes_in_f32(Target target, ir::Reduction kind, DType dtype);
SortFunction vector_sort(Target target, DType dtype);
StripFunction vector_store_masked(Target target, DType dtype);
StripFunction vector_stream(Target target, DType dtype);
StripFunction vector_interleave_pairs(Target target, DType in);
StripFunction vector_interleave_quads(Target target);
StripFunction vector_transpose(Target target, DType in, DType out);

GemmFunction vector_gemm_f32(Target target);
GemmFunction vector_gemm_f64(Target target);
GemmFunction vector_gemm_rows_f32(Target target);
GemmFunction vector_gemm_i32(Target target);
GemmFunction vector_gemm_i64(Target target);
GemmFunction vector_gemm_i16_pairs(Target target);

const Superinstructions* vector_superinstructions(Target target);
const FusedKernels* vector_fused_kernels(Target target);
decltype(FusedKernels::compiled) vector_compiled_runs(Target target);

}  // namespace tilewright::cpu
