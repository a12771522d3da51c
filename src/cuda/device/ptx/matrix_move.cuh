// ldmatrix (sm_75) and stmatrix (sm_90): 8x8 tiles of 16-bit elements between shared memory and the
// fragments of mma. Lane 8i + r gives the address of row r of tile i.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

/// PTX ISA, ldmatrix.x1.
TW_DEVICE void ldmatrix(u32 (&d)[1], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(d[0])
                 : "r"(row)
                 : "memory");
}

/// PTX ISA, ldmatrix.x2.
TW_DEVICE void ldmatrix(u32 (&d)[2], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(d[0]), "=r"(d[1])
                 : "r"(row)
                 : "memory");
}

/// PTX ISA, ldmatrix.x4.
TW_DEVICE void ldmatrix(u32 (&d)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(row)
                 : "memory");
}

/// PTX ISA, ldmatrix.x2.trans: every tile is transposed.
TW_DEVICE void ldmatrix_transposed(u32 (&d)[2], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(d[0]), "=r"(d[1])
                 : "r"(row)
                 : "memory");
}

/// PTX ISA, ldmatrix.x4.trans.
TW_DEVICE void ldmatrix_transposed(u32 (&d)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(row)
                 : "memory");
}

// The same with each register as an argument of its own, for generated code.

/// PTX ISA, ldmatrix.x2.
TW_DEVICE void ldmatrix(u32& d0, u32& d1, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(d0), "=r"(d1)
                 : "r"(row));
}

/// PTX ISA, ldmatrix.x4.
TW_DEVICE void ldmatrix(u32& d0, u32& d1, u32& d2, u32& d3, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3)
                 : "r"(row));
}

/// PTX ISA, ldmatrix.x2.trans.
TW_DEVICE void ldmatrix_transposed(u32& d0, u32& d1, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(d0), "=r"(d1)
                 : "r"(row));
}

/// PTX ISA, ldmatrix.x4.trans.
TW_DEVICE void ldmatrix_transposed(u32& d0, u32& d1, u32& d2, u32& d3, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3)
                 : "r"(row));
}

/// PTX ISA, ld.shared.v2.b32, 8-byte aligned: neighbouring rows of a fragment with columns in rows
/// of shared memory.
TW_DEVICE void load_fragment_pair(u32& a, u32& b, u32 address) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(address));
}

/// PTX ISA, stmatrix.x2.
TW_DEVICE void stmatrix(u32 row, const u32 (&s)[2]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(s[0]),
                 "r"(s[1])
                 : "memory");
}

/// PTX ISA, stmatrix.x4.
TW_DEVICE void stmatrix(u32 row, const u32 (&s)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(s[0]), "r"(s[1]), "r"(s[2]), "r"(s[3])
                 : "memory");
}

/// PTX ISA, stmatrix.x4.trans.
TW_DEVICE void stmatrix_transposed(u32 row, const u32 (&s)[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
        "r"(s[0]), "r"(s[1]), "r"(s[2]), "r"(s[3])
        : "memory");
}

/// PTX ISA, movmatrix.trans: the fragment of the transposed 8x8 tile, whose rows and columns change
/// places across the warp.
TW_DEVICE u32 transpose_matrix(u32 fragment) {
    u32 result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(fragment));
    return result;
}

}  // namespace twd::ptx
