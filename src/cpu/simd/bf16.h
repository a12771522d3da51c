// Products, rounding and probabilities of bf16 pairs with the machine's own instructions. Only to
// be called where has_avx512_bf16 or has_amx said so.
#pragma once

#include "cpu/simd/kernels.h"

namespace tilewright::cpu {

bool has_avx512_bf16();
/// Also asks the kernel for permission to use the tile registers.
bool has_amx();

void avx512_gemm_bf16_pairs(const GemmArgs& args);
/// C *= row_scale or lane_scale, C of f32.
void avx512_scale(const GemmArgs& args);
/// Kernels::interleave_pairs from f32 rows of contiguous lanes; subnormal numbers become 0, as the
/// products take them.
void avx512_interleave_f32(const Strip& strip);
/// Superinstructions::exp2_sum_pairs.
void avx512_exp2_sum_pairs(const Strip& strip);
void amx_gemm_bf16_pairs(const GemmArgs& args);

}  // namespace tilewright::cpu
