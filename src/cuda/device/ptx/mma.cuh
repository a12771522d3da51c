// mma.sync: the tensor core instructions of one warp, d += a b, sm_80.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

// Fragments, with g = lane / 4 and t = lane % 4. m16n8: d[0..1] is row g, columns 2t and 2t + 1;
// d[2..3] row g + 8. 16-bit a: a[0] row g, k 2t..; a[1] row g + 8; a[2], a[3] the same at k + 8;
// b[0] k 2t.., column g; b[1] at k + 8.

/// PTX ISA, mma.m16n8k16, f16 operands, f32 accumulator.
TW_DEVICE void mma_m16n8k16(F16, float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// PTX ISA, mma.m16n8k8, f16 operands, f32 accumulator.
TW_DEVICE void mma_m16n8k8(F16, float (&d)[4], const u32 (&a)[2], u32 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

/// PTX ISA, mma.m16n8k16, bf16 operands, f32 accumulator.
TW_DEVICE void mma_m16n8k16(Bf16, float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// PTX ISA, mma.m16n8k8, bf16 operands, f32 accumulator.
TW_DEVICE void mma_m16n8k8(Bf16, float (&d)[4], const u32 (&a)[2], u32 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

/// PTX ISA, mma.m16n8k8, tf32 operands (f32 bits; the low 13 are ignored), f32 accumulator.
/// a[0] row g, k t; a[1] row g + 8; a[2], a[3] the same at k + 4; b[0] k t, column g; b[1] at k
/// + 4.
TW_DEVICE void mma_m16n8k8(Tf32, float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// PTX ISA, mma.m16n8k4, tf32 operands, f32 accumulator. a[0] row g, k t; a[1] row g + 8.
TW_DEVICE void mma_m16n8k4(Tf32, float (&d)[4], const u32 (&a)[2], u32 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
        "{%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

/// PTX ISA, mma.m8n8k4, f64. a: row g, k t; b: k t, column g; d: row g, columns 2t, 2t + 1.
TW_DEVICE void mma_m8n8k4(double (&d)[2], double a, double b) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1])
                 : "d"(a), "d"(b));
}

// One or more whole steps along k are one statement of generated code, `multiply`, selected by
// these types (cuda/codegen/mma_steps.h).

/// A grid of products of 16 x 8 x 16: rows x columns of them.
template <int kRows, int kColumns>
struct Blocks {};

/// How ldmatrix loads the right operand: as it is stored, or transposed.
template <bool kTransposed>
struct Moved {};

/// The left operand of so many steps is loaded by ldmatrix, too.
template <int kSteps, bool kTransposed>
struct Loads {};

// One product with each register as an argument of its own, for generated code: not volatile, so
// that the compiler may move and remove it.

/// PTX ISA, mma.m16n8k16, f16 operands.
TW_DEVICE void mma_m16n8k16(F16, float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2,
                            u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// PTX ISA, mma.m16n8k16, bf16 operands.
TW_DEVICE void mma_m16n8k16(Bf16, float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1,
                            u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// PTX ISA, mma.m16n8k8, tf32 operands.
TW_DEVICE void mma_m16n8k8(Tf32, float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2,
                           u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// PTX ISA, mma.m16n8k32, signed or unsigned bytes, i32 accumulator. a0: row g, k 4t to 4t + 3; a1
// row g + 8; a2, a3 the same at k + 16; b0: k 4t.., column g; b1 at k + 16.
#define TW_MMA_BYTES(A, a_type, B, b_type)                                                        \
    TW_DEVICE void mma_m16n8k32(A, B, int& d0, int& d1, int& d2, int& d3, u32 a0, u32 a1, u32 a2, \
                                u32 a3, u32 b0, u32 b1) {                                         \
        asm("mma.sync.aligned.m16n8k32.row.col.s32." a_type "." b_type                            \
            ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                \
            : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3)                                              \
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                              \
    }
TW_MMA_BYTES(S8, "s8", S8, "s8")
TW_MMA_BYTES(S8, "s8", U8, "u8")
TW_MMA_BYTES(U8, "u8", S8, "s8")
TW_MMA_BYTES(U8, "u8", U8, "u8")
#undef TW_MMA_BYTES

/// PTX ISA, mma.m8n8k4, f64.
TW_DEVICE void mma_m8n8k4(double& d0, double& d1, double a, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(d0), "+d"(d1)
        : "d"(a), "d"(b));
}

}  // namespace twd::ptx
