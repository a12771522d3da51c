// Generated from @histogram for sm_80: 1 warps, 1024 bytes of shared memory.
#include "cuda/device/ptx/matrix_move.cuh"
#include "cuda/device/ptx/mma.cuh"
#include "cuda/device/tile/memory.cuh"
using namespace twd;

extern "C" __global__ void __launch_bounds__(32, 1) kernel_histogram(const __grid_constant__ Array<i32, 1> r0_x, const __grid_constant__ Array<i32, 1> r1_counts, const i64 grid0) {
    extern __shared__ __align__(1024) u8 memory[];
    [[maybe_unused]] const u32 memory_address = shared_address(memory);
    [[maybe_unused]] const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    constexpr u32 kBuffer0 = 0;  // 1024 bytes
    const int at0 = lane * 4;
    const int at1 = lane;
    u32 program = blockIdx.x;
    const i64 program0 = program;
    // %2 = program_id axis 0 : i64
    // %4 = mul %2, %3 : i64
    const i64 v4 = ops::mul(program0, 256ll);
    // %5 = load %x[%4 : 256] in_bounds : i32[256]
    auto* const p0 = r0_x.data + v4 + at0;
    uint4 raw0_0 = {}, raw0_1 = {};
    load_raw(p0, raw0_0);
    load_raw(p0 + 128, raw0_1);
    // %7 = atomic_add %counts[tile %5], %6 : i32[256]
    // through shared memory from [256] reg [0:1 0:2 0:128] lane [0:4 0:8 0:16 0:32 0:64] warp [] to [256] reg [0:32 0:64 0:128] lane [0:1 0:2 0:4 0:8 0:16] warp []
    auto* const kBuffer0_data = reinterpret_cast<i32*>(memory + kBuffer0);
    store_vector<i32>(kBuffer0_data + (at0 + 0), unpacked<i32, 0>(raw0_0), unpacked<i32, 1>(raw0_0), unpacked<i32, 2>(raw0_0), unpacked<i32, 3>(raw0_0));
    store_vector<i32>(kBuffer0_data + (at0 + 128), unpacked<i32, 0>(raw0_1), unpacked<i32, 1>(raw0_1), unpacked<i32, 2>(raw0_1), unpacked<i32, 3>(raw0_1));
    __syncthreads();
    i32 m1_0;
    load_vector(kBuffer0_data + (at1 + 0), m1_0);
    i32 m1_1;
    load_vector(kBuffer0_data + (at1 + 32), m1_1);
    i32 m1_2;
    load_vector(kBuffer0_data + (at1 + 64), m1_2);
    i32 m1_3;
    load_vector(kBuffer0_data + (at1 + 96), m1_3);
    i32 m1_4;
    load_vector(kBuffer0_data + (at1 + 128), m1_4);
    i32 m1_5;
    load_vector(kBuffer0_data + (at1 + 160), m1_5);
    i32 m1_6;
    load_vector(kBuffer0_data + (at1 + 192), m1_6);
    i32 m1_7;
    load_vector(kBuffer0_data + (at1 + 224), m1_7);
    auto* const p1 = r1_counts.data;
    i32 v7_0 = {}, v7_1 = {}, v7_2 = {}, v7_3 = {}, v7_4 = {}, v7_5 = {}, v7_6 = {}, v7_7 = {};
    if (static_cast<u64>(static_cast<i64>(m1_0)) < 100ll) {
        v7_0 = atomic_add(p1 + static_cast<i64>(m1_0), 1);
    }
    if (static_cast<u64>(static_cast<i64>(m1_1)) < 100ll) {
        v7_1 = atomic_add(p1 + static_cast<i64>(m1_1), 1);
    }
    if (static_cast<u64>(static_cast<i64>(m1_2)) < 100ll) {
        v7_2 = atomic_add(p1 + static_cast<i64>(m1_2), 1);
    }
    if (static_cast<u64>(static_cast<i64>(m1_3)) < 100ll) {
        v7_3 = atomic_add(p1 + static_cast<i64>(m1_3), 1);
    }
    if (static_cast<u64>(static_cast<i64>(m1_4)) < 100ll) {
        v7_4 = atomic_add(p1 + static_cast<i64>(m1_4), 1);
    }
    if (static_cast<u64>(static_cast<i64>(m1_5)) < 100ll) {
        v7_5 = atomic_add(p1 + static_cast<i64>(m1_5), 1);
    }
    if (static_cast<u64>(static_cast<i64>(m1_6)) < 100ll) {
        v7_6 = atomic_add(p1 + static_cast<i64>(m1_6), 1);
    }
    if (static_cast<u64>(static_cast<i64>(m1_7)) < 100ll) {
        v7_7 = atomic_add(p1 + static_cast<i64>(m1_7), 1);
    }
}
