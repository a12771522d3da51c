// Products of pairs of bf16 and of quads of bytes, rounding and probabilities of bf16 pairs, with
// the machine's own instructions. Only to be called where the function of that name says so.
#pragma once

#include "cpu/simd/kernels.h"

namespace tilewright::cpu {

bool has_avx512_bf16();
bool has_avx512_vnni();
/// Also asks the kernel for permission to use the tile registers. AMX-BF16, and AVX512-BF16.
bool has_amx();
/// has_amx, and AMX-INT8 and AVX512-VNNI besides.
bool has_amx_int8();

void avx512_gemm_bf16_pairs(const GemmArgs& args);
/// C *= row_scale or lane_scale, C of f32.
void avx512_scale(const GemmArgs& args);
/// Kernels::interleave_pairs from f32 rows of contiguous lanes; subnormal numbers become 0, as the
/// products take them.
void avx512_interleave_f32(const Strip& strip);
/// Superinstructions::exp2_sum_pairs.
void avx512_exp2_sum_pairs(const Strip& strip);
/// Kernels::gemm_i8_quads. Products of integers know no scale.
GemmFunction avx512_gemm_i8_quads(bool a_signed, bool b_signed);

void amx_gemm_bf16_pairs(const GemmArgs& args);
GemmFunction amx_gemm_i8_quads(bool a_signed, bool b_signed);

}  // namespace tilewright::cpu
