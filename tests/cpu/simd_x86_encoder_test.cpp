// Instructions have the bytes that the assembler gives them.
#include <gtest/gtest.h>

#include "cpu/simd/x86_encoder.h"
#include "cpu/simd/x86_opcodes.h"

#if defined(__x86_64__) && defined(__linux__)

namespace tilewright::cpu::x86 {
namespace {

using Bytes = std::vector<std::uint8_t>;

// What the assembler that builds this file makes of an instruction.
#define TW_ASSEMBLED(text)                                 \
    ([] {                                                  \
        const std::uint8_t *begin, *end;                   \
        asm(".pushsection .rodata\n77771: " text           \
            "\n77772:\n.popsection\n"                      \
            "lea 77771b(%%rip), %0\nlea 77772b(%%rip), %1" \
            : "=r"(begin), "=r"(end));                     \
        return Bytes(begin, end);                          \
    }())

#define EXPECT_CODE(wide, call, text)                            \
    do {                                                         \
        Encoder encoder(wide);                                   \
        encoder.call;                                            \
        EXPECT_EQ(encoder.code(), TW_ASSEMBLED(text)) << (text); \
    } while (false)
#define EXPECT_VEX(call, text) EXPECT_CODE(false, call, text)
#define EXPECT_EVEX(call, text) EXPECT_CODE(true, call, text)
// With an operand that is part of the instruction.
#define EXPECT_VEX_IMMEDIATE(call, value, text)                  \
    do {                                                         \
        Encoder encoder(false);                                  \
        encoder.call;                                            \
        encoder.immediate(value);                                \
        EXPECT_EQ(encoder.code(), TW_ASSEMBLED(text)) << (text); \
    } while (false)

TEST(X86Encoder, VexOfRegisters) {
    EXPECT_VEX(vector(kMove, 3, 0, 7), "vmovaps %%ymm7, %%ymm3");
    EXPECT_VEX(vector(kMove, 12, 0, 2), "vmovaps %%ymm2, %%ymm12");
    EXPECT_VEX(vector(kMove, 12, 0, 13), "vmovaps %%ymm13, %%ymm12");
    EXPECT_VEX(vector(kAdd, 1, 2, 3), "vaddps %%ymm3, %%ymm2, %%ymm1");
    EXPECT_VEX(vector(kAdd, 9, 10, 3), "vaddps %%ymm3, %%ymm10, %%ymm9");
    EXPECT_VEX(vector(*arithmetic_opcode(ir::Op::sub, DType::f32), 9, 10, 11),
               "vsubps %%ymm11, %%ymm10, %%ymm9");
    EXPECT_VEX(vector(*arithmetic_opcode(ir::Op::mul, DType::f32), 1, 2, 7),
               "vmulps %%ymm7, %%ymm2, %%ymm1");
    EXPECT_VEX(vector(*arithmetic_opcode(ir::Op::div, DType::f32), 1, 2, 15),
               "vdivps %%ymm15, %%ymm2, %%ymm1");
    EXPECT_VEX(vector(*arithmetic_opcode(ir::Op::min, DType::f32), 1, 2, 15),
               "vminps %%ymm15, %%ymm2, %%ymm1");
    EXPECT_VEX(vector(*arithmetic_opcode(ir::Op::max, DType::f32), 1, 2, 15),
               "vmaxps %%ymm15, %%ymm2, %%ymm1");
    EXPECT_VEX(vector(kAddWords, 4, 5, 6), "vpaddd %%ymm6, %%ymm5, %%ymm4");
    EXPECT_VEX(vector(*arithmetic_opcode(ir::Op::sub, DType::i32), 4, 5, 14),
               "vpsubd %%ymm14, %%ymm5, %%ymm4");
    EXPECT_VEX(vector(*arithmetic_opcode(ir::Op::mul, DType::i32), 4, 5, 14),
               "vpmulld %%ymm14, %%ymm5, %%ymm4");
    EXPECT_VEX(vector(*arithmetic_opcode(ir::Op::min, DType::i32), 4, 5, 14),
               "vpminsd %%ymm14, %%ymm5, %%ymm4");
    EXPECT_VEX(vector(*arithmetic_opcode(ir::Op::max, DType::i32), 4, 5, 14),
               "vpmaxsd %%ymm14, %%ymm5, %%ymm4");
    EXPECT_VEX(vector(kSqrt, 8, 0, 13), "vsqrtps %%ymm13, %%ymm8");
    EXPECT_VEX(vector(kToFloat, 8, 0, 3), "vcvtdq2ps %%ymm3, %%ymm8");
    EXPECT_VEX(vector(kFma213, 8, 3, 12), "vfmadd213ps %%ymm12, %%ymm3, %%ymm8");
    EXPECT_VEX(vector(kFma231, 1, 3, 2), "vfmadd231ps %%ymm2, %%ymm3, %%ymm1");
    EXPECT_VEX(vector(kFma132, 1, 13, 2), "vfmadd132ps %%ymm2, %%ymm13, %%ymm1");
    EXPECT_VEX(vector(kBroadcast, 11, 0, 14), "vbroadcastss %%xmm14, %%ymm11");
    EXPECT_VEX(vector(kBroadcastLane, 1, 0, 14), "vpbroadcastd %%xmm14, %%ymm1");
    EXPECT_VEX(vector(kPermute, 1, 15, 9), "vpermps %%ymm9, %%ymm15, %%ymm1");
    EXPECT_VEX(vector(kZero, 7, 7, 7), "vpxor %%ymm7, %%ymm7, %%ymm7");
    EXPECT_VEX(vector(kZero, 15, 15, 15), "vpxor %%ymm15, %%ymm15, %%ymm15");
    EXPECT_VEX(vector(kAnd, 2, 4, 1), "vpand %%ymm1, %%ymm4, %%ymm2");
    EXPECT_VEX(vector(kOr, 2, 14, 1), "vpor %%ymm1, %%ymm14, %%ymm2");
    EXPECT_VEX(vector(kEqualWords, 2, 14, 1), "vpcmpeqd %%ymm1, %%ymm14, %%ymm2");
    EXPECT_VEX(vector(kGreaterWords, 2, 4, 13), "vpcmpgtd %%ymm13, %%ymm4, %%ymm2");
    EXPECT_VEX(vector(kPackWords, 15, 4, 15), "vpackssdw %%ymm15, %%ymm4, %%ymm15");
    EXPECT_VEX(vector(kPackHalves, 15, 15, 15), "vpacksswb %%ymm15, %%ymm15, %%ymm15");
    EXPECT_VEX(vector(kAbsoluteBytes, 15, 0, 15), "vpabsb %%ymm15, %%ymm15");
    EXPECT_VEX(move_word(3, rcx), "vmovd %%ecx, %%xmm3");
    EXPECT_VEX(move_word(15, rax), "vmovd %%eax, %%xmm15");
    EXPECT_VEX(move_to_rax(15), "vmovq %%xmm15, %%rax");
}

TEST(X86Encoder, VexWithImmediates) {
    EXPECT_VEX_IMMEDIATE(vector(kCompareFloats, 4, 5, 14), 0x1D,
                         "vcmpps $0x1D, %%ymm14, %%ymm5, %%ymm4");
    EXPECT_VEX_IMMEDIATE(vector(kPairs, 4, 5, 6), 0x88, "vshufps $0x88, %%ymm6, %%ymm5, %%ymm4");
    EXPECT_VEX_IMMEDIATE(vector(kHalves, 4, 15, 6), 0x31,
                         "vperm2i128 $0x31, %%ymm6, %%ymm15, %%ymm4");
    EXPECT_VEX_IMMEDIATE(vector(kSwapWords, 4, 0, 6), 0xB1, "vpermilps $0xB1, %%ymm6, %%ymm4");
    EXPECT_VEX_IMMEDIATE(vector(kBlendKnown, 4, 9, 10), 0xA5,
                         "vblendps $0xA5, %%ymm10, %%ymm9, %%ymm4");
    EXPECT_VEX_IMMEDIATE(vector(kBlendBySigns, 4, 9, 10), 13 << 4,
                         "vblendvps %%ymm13, %%ymm10, %%ymm9, %%ymm4");
    EXPECT_VEX_IMMEDIATE(vector(kUpperHalf, 12, 0, 15), 1, "vextracti128 $1, %%ymm12, %%xmm15");
}

// Offsets take one byte, four or none.
TEST(X86Encoder, VexOfMemory) {
    EXPECT_VEX(vector_memory(kLoad, 3, 0, rdi, 0), "vmovups (%%rdi), %%ymm3");
    EXPECT_VEX(vector_memory(kLoad, 13, 0, rdx, 127), "vmovups 127(%%rdx), %%ymm13");
    EXPECT_VEX(vector_memory(kLoad, 13, 0, rdx, 128), "vmovups 128(%%rdx), %%ymm13");
    EXPECT_VEX(vector_memory(kLoad, 1, 0, rsi, -128), "vmovups -128(%%rsi), %%ymm1");
    EXPECT_VEX(vector_memory(kLoad, 1, 0, rsi, -129), "vmovups -129(%%rsi), %%ymm1");
    EXPECT_VEX(vector_memory(kLoad, 1, 0, rbp, 0), "vmovups (%%rbp), %%ymm1");
    EXPECT_VEX(vector_memory(kLoad, 1, 0, r13, 0), "vmovups (%%r13), %%ymm1");
    EXPECT_VEX(vector_memory(kLoad, 1, 0, rsp, 8), "vmovups 8(%%rsp), %%ymm1");
    EXPECT_VEX(vector_memory(kLoad, 1, 0, r12, 0), "vmovups (%%r12), %%ymm1");
    EXPECT_VEX(vector_memory(kStore, 1, 0, r10, 4096), "vmovups %%ymm1, 4096(%%r10)");
    EXPECT_VEX(vector_memory(kStore, 14, 0, r8, 0), "vmovups %%ymm14, (%%r8)");
    EXPECT_VEX(vector_memory(kStream, 14, 0, rdi, 32), "vmovntps %%ymm14, 32(%%rdi)");
    EXPECT_VEX(vector_memory(kAdd, 14, 3, rdi, 32), "vaddps 32(%%rdi), %%ymm3, %%ymm14");
    EXPECT_VEX(vector_memory(kFma213, 4, 13, r10, 64), "vfmadd213ps 64(%%r10), %%ymm13, %%ymm4");
    EXPECT_VEX(vector_memory(kPermute, 4, 13, r10, 64), "vpermps 64(%%r10), %%ymm13, %%ymm4");
    EXPECT_VEX(vector_memory(kBroadcast, 4, 0, rdi, 300), "vbroadcastss 300(%%rdi), %%ymm4");
    EXPECT_VEX(vector_memory(kWidenBytes, 15, 0, rdi, 3), "vpmovzxbd 3(%%rdi), %%ymm15");
    EXPECT_VEX(vector_memory(kBroadcastByte, 15, 0, rsi, 3), "vpbroadcastb 3(%%rsi), %%ymm15");
    EXPECT_VEX(vector_memory(kMaskedLoad, 2, 11, r8, 64), "vmaskmovps 64(%%r8), %%ymm11, %%ymm2");
    EXPECT_VEX(vector_memory(kMaskedStore, 2, 1, rdi, 640),
               "vmaskmovps %%ymm2, %%ymm1, 640(%%rdi)");
    EXPECT_VEX(vector_memory(kLoadScalar, 2, 0, rdi, 640), "vmovss 640(%%rdi), %%xmm2");
    EXPECT_VEX(vector_memory(kStoreScalar, 12, 0, r10, 4), "vmovss %%xmm12, 4(%%r10)");
    EXPECT_VEX(vector_lanes(kLoadScalar, 2, 0, rdi, 8), "vmovss 8(%%rdi,%%rax,4), %%xmm2");
    EXPECT_VEX_IMMEDIATE(vector_memory(kBlendKnown, 4, 9, r10, 32), 0x0F,
                         "vblendps $0x0F, 32(%%r10), %%ymm9, %%ymm4");
    EXPECT_VEX_IMMEDIATE(vector_memory(kBlendBySigns, 4, 9, rdi, 32), 3 << 4,
                         "vblendvps %%ymm3, 32(%%rdi), %%ymm9, %%ymm4");
    EXPECT_VEX(vector_at(kBroadcast, 9, 0, r11), "vbroadcastss (%%r11), %%ymm9");
    EXPECT_VEX(vector_lanes(kLoad, 9, 0, rdi, 0), "vmovups (%%rdi,%%rax,4), %%ymm9");
    EXPECT_VEX(vector_lanes(kLoad, 9, 0, rdi, 1024), "vmovups 1024(%%rdi,%%rax,4), %%ymm9");
    EXPECT_VEX(vector_lanes(kSqrt, 9, 0, r13, 0), "vsqrtps (%%r13,%%rax,4), %%ymm9");
    EXPECT_VEX(vector_gather(kGather, 2, 12, r8, 64, 15),
               "vgatherdps %%ymm15, 64(%%r8,%%ymm12,4), %%ymm2");
    EXPECT_VEX(vector_gather(kGather, 9, 3, rdi, 0, 1),
               "vgatherdps %%ymm1, (%%rdi,%%ymm3,4), %%ymm9");
}

TEST(X86Encoder, Evex) {
    EXPECT_EVEX(vector(kAdd, 17, 30, 9), "%{evex%} vaddps %%zmm9, %%zmm30, %%zmm17");
    EXPECT_EVEX(vector(kAdd, 1, 2, 27, 5 | kZeros), "vaddps %%zmm27, %%zmm2, %%zmm1 %{%%k5%}%{z%}");
    EXPECT_EVEX(vector(kFma213, 8, 3, 12, 1), "vfmadd213ps %%zmm12, %%zmm3, %%zmm8 %{%%k1%}");
    EXPECT_EVEX(vector_memory(kLoad, 30, 0, rdi, 0), "vmovups (%%rdi), %%zmm30");
    EXPECT_EVEX(vector_memory(kLoad, 3, 0, r10, 64), "%{disp32%} vmovups 64(%%r10), %%zmm3");
    EXPECT_EVEX(vector_memory(kStore, 3, 0, r8, 65, 2), "vmovups %%zmm3, 65(%%r8) %{%%k2%}");
    EXPECT_EVEX(vector_memory(kAdd, 3, 20, rdi, 4, kToAll),
                "%{disp32%} vaddps 4(%%rdi)%{1to16%}, %%zmm20, %%zmm3");
    EXPECT_EVEX(vector_lanes(kLoad, 9, 0, rdi, 4, 7 | kZeros),
                "%{disp32%} vmovups 4(%%rdi,%%rax,4), %%zmm9 %{%%k7%}%{z%}");
    EXPECT_EVEX(vector_gather(kGather, 2, 31, r8, 4, 6),
                "%{disp32%} vgatherdps 4(%%r8,%%zmm31,4), %%zmm2 %{%%k6%}");
}

TEST(X86Encoder, GeneralRegisters) {
    EXPECT_VEX(load(rax, rsi, 256), "movq 256(%%rsi), %%rax");
    EXPECT_VEX(load(r8, r11, 256), "movq 256(%%r11), %%r8");
    EXPECT_VEX(load_signed_32(rax, rsi, 256), "movslq 256(%%rsi), %%rax");
    EXPECT_VEX(store(rsi, 256, rax), "movq %%rax, 256(%%rsi)");
    EXPECT_VEX(add(rax, rsi, 256), "addq 256(%%rsi), %%rax");
    EXPECT_VEX(add_to(rsi, 256, r9), "addq %%r9, 256(%%rsi)");
    EXPECT_VEX(push(r12), "pushq %%r12");
    EXPECT_VEX(pop(rbx), "popq %%rbx");
    EXPECT_VEX(load_constant(r8, 0x123456789ABCDEF0), "movabsq $0x123456789ABCDEF0, %%r8");
}

}  // namespace
}  // namespace tilewright::cpu::x86

#endif
