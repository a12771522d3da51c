// Products of pairs of bf16 and of quads of bytes, rounding and probabilities of bf16 pairs, with
// special instructions. To be called only where the matching has_ function returns true.
#pragma once

#include "cpu/simd/kernels.h"

namespace tilewright::cpu {

bool has_avx512_bf16();
bool has_avx512_vnni();
/// AMX-BF16 and AVX512-BF16. Also asks the kernel for permission to use the tile registers.
bool has_amx();
/// has_amx, and also AMX-INT8 and AVX512-VNNI.
bool has_amx_int8();

void avx512_gemm_bf16_pairs(const GemmArgs& args);
/// C *= row_scale or lane_scale, for C of f32.
void avx512_scale(const GemmArgs& args);
/// Kernels::interleave_pairs from f32 rows of contiguous lanes; subnormal numbers become 0, as in
/// the products.
void avx512_interleave_f32(const Strip& strip);
/// Superinstructions::exp2_sum_pairs.
void avx512_exp2_sum_pairs(const Strip& strip);
/// Superinstructions::gradient_pairs.
void avx512_gradient_pairs(const FusedCall& call);
/// Kernels::gemm_i8_quads. Products of integers have no scale.
GemmFunction avx512_gemm_i8_quads(bool a_signed, bool b_signed);

void amx_gemm_bf16_pairs(const GemmArgs& args);
GemmFunction amx_gemm_i8_quads(bool a_signed, bool b_signed);

}  // namespace tilewright::cpu
