// wgmma: asynchronous tensor core instructions of a warpgroup, sm_90a. The multiplications
// themselves, one overload per N and operand source, are generated for the shapes that a kernel
// needs (cuda/codegen/wgmma_shapes.h).
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

/// PTX ISA, wgmma.fence: before the first wgmma, and after writes to the registers of one.
TW_DEVICE void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// PTX ISA, wgmma.commit_group.
TW_DEVICE void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// PTX ISA, wgmma.wait_group: at most kPending of the warpgroup's groups unfinished.
template <int kPending>
TW_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// No instruction: keeps the compiler from moving uses of accumulators, or reusing the registers of
/// an A operand, across this place.
template <int kCount>
TW_DEVICE void wgmma_tie(float (&registers)[kCount]) {
#ifndef TW_COMPACT
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
#endif
}
template <int kCount>
TW_DEVICE void wgmma_tie(int (&registers)[kCount]) {
#ifndef TW_COMPACT
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
#endif
}
template <int kCount>
TW_DEVICE void wgmma_tie(u32 (&registers)[kCount]) {
#ifndef TW_COMPACT
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
#endif
}

/// PTX ISA, matrix descriptor for a tile in 128-byte swizzle, aligned to 1024 bytes.
/// K-major (64 elements of K in a row of 128 bytes): stride 1024 to the next 8 rows, `leading` is
/// ignored; 16 further along K is 32 bytes. MN-major (64 elements of M or N in a row, a row per k):
/// stride 1024 to the next 8 k, `leading` to the next 64 elements; 16 further along K is 2048
/// bytes.
TW_DEVICE u64 wgmma_descriptor_swizzle128(u32 address, u32 leading, u32 stride) {
    constexpr u64 kSwizzle128 = 1ull << 62;
    return static_cast<u64>((address & 0x3ffff) >> 4) | static_cast<u64>(leading >> 4) << 16 |
           static_cast<u64>(stride >> 4) << 32 | kSwizzle128;
}

/// A number of instructions of one product, each 32 bytes further along its inner dimension.
template <int kCount>
struct Steps {};

/// Where an operand's steps begin, in units of its descriptor, from the distance in bytes between
/// steps and between groups of four.
template <int kStepBytes, int kFourBytes = 4 * kStepBytes>
struct Stride {
    static constexpr int at(int step) {
        return (step / 4 * kFourBytes + step % 4 * kStepBytes) >> 4;
    }
};
/// K-major, four steps in a panel of 64 columns; and MN-major, all rows of a panel.
template <int kPanelBytes>
using AlongRows = Stride<32, kPanelBytes>;
using AlongColumns = Stride<16 * 128>;

}  // namespace twd::ptx
