// Loads, stores and reductions with explicit state spaces, and a few special registers.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

/// PTX ISA, ld.shared.b32.
TW_DEVICE u32 load_shared_32(u32 address) {
    u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

/// PTX ISA, ld.shared.b64.
TW_DEVICE u64 load_shared_64(u32 address) {
    u64 value;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
    return value;
}

/// PTX ISA, ld.shared.v2.f32, 8-byte aligned.
TW_DEVICE float2 load_shared_f32x2(u32 address) {
    float2 value;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(value.x), "=f"(value.y)
                 : "r"(address)
                 : "memory");
    return value;
}

/// PTX ISA, ld.shared.v4.b32, 16-byte aligned.
TW_DEVICE uint4 load_shared_128(u32 address) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
}

/// PTX ISA, st.shared.b32.
TW_DEVICE void store_shared_32(u32 address, u32 value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

/// PTX ISA, st.shared.v4.b32, 16-byte aligned.
TW_DEVICE void store_shared_128(u32 address, uint4 value) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x),
                 "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

/// PTX ISA, ld.global.nc.L1::no_allocate: data that no thread of the grid writes, kept out of L1.
TW_DEVICE uint4 load_once_128(const void* address) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address));
    return value;
}

/// PTX ISA, ld.global.nc: data that no thread of the grid writes. Volatile: the load is issued
/// where it is written, so that the code after it hides its latency.
TW_DEVICE uint4 load_constant_128(const void* address) {
    uint4 value;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address));
    return value;
}

/// PTX ISA, st.global.L1::no_allocate.v4: written once, read by a later kernel.
TW_DEVICE void store_once_128(void* address, uint4 value) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address),
                 "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

/// PTX ISA, red.global.add.f32 (relaxed, device scope).
TW_DEVICE void reduce_add(float* address, float value) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}

/// PTX ISA, red.global.add.v4.f32, 16-byte aligned (sm_90).
TW_DEVICE void reduce_add(float* address, float4 value) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
                 "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
}

/// PTX ISA, atom.global.add.u32 (acquire and release, device scope): returns the value before.
TW_DEVICE u32 fetch_add(u32* address, u32 value) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(address), "r"(value)
                 : "memory");
    return before;
}

/// PTX ISA, ld.acquire.gpu.global.b32.
TW_DEVICE u32 load_acquire(const u32* address) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

/// PTX ISA, st.relaxed.gpu.global.b32.
TW_DEVICE void store_relaxed(u32* address, u32 value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// PTX ISA, %globaltimer: nanoseconds, one clock for the whole GPU.
TW_DEVICE u64 global_nanoseconds() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

/// PTX ISA, %laneid. Volatile: the compiler does not keep it, or what derives from it, live.
TW_DEVICE u32 lane_index() {
    u32 lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/// PTX ISA, %clock64: cycles of this multiprocessor.
TW_DEVICE u64 clock_cycles() {
    u64 cycles;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
    return cycles;
}

}  // namespace twd::ptx
