// Generated from @gather for sm_80: 1 warps, 1280 bytes of shared memory.
#include "cuda/device/ptx/matrix_move.cuh"
#include "cuda/device/ptx/mma.cuh"
#include "cuda/device/tile/memory.cuh"
using namespace twd;

extern "C" __global__ void __launch_bounds__(32, 1) kernel_gather(const __grid_constant__ Array<f32, 1> r0_table, const __grid_constant__ Array<i32, 1> r1_indices, const __grid_constant__ Array<f32, 1> r2_out, const i64 grid0) {
    extern __shared__ __align__(1024) u8 memory[];
    [[maybe_unused]] const u32 memory_address = shared_address(memory);
    [[maybe_unused]] const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    constexpr u32 kBuffer0 = 1024;  // 256 bytes
    constexpr u32 kBuffer1 = 0;  // 1024 bytes
    const int at0 = lane * 4;
    const int at1 = lane;
    u32 program = blockIdx.x;
    const i64 program0 = program;
    // %3 = program_id axis 0 : i64
    // %5 = mul %3, %4 : i64
    const i64 v5 = ops::mul(program0, 256ll);
    // %6 = load %indices[%5 : 256] in_bounds : i32[256]
    auto* const p0 = r1_indices.data + v5 + at0;
    uint4 raw0_0 = {}, raw0_1 = {};
    load_raw(p0, raw0_0);
    load_raw(p0 + 128, raw0_1);
    // %8 = ge %6, %7 : bool[256]
    const bool v8_0 = unpacked<i32, 0>(raw0_0) >= 0;
    const bool v8_1 = unpacked<i32, 1>(raw0_0) >= 0;
    const bool v8_2 = unpacked<i32, 2>(raw0_0) >= 0;
    const bool v8_3 = unpacked<i32, 3>(raw0_0) >= 0;
    const bool v8_4 = unpacked<i32, 0>(raw0_1) >= 0;
    const bool v8_5 = unpacked<i32, 1>(raw0_1) >= 0;
    const bool v8_6 = unpacked<i32, 2>(raw0_1) >= 0;
    const bool v8_7 = unpacked<i32, 3>(raw0_1) >= 0;
    // %10 = load %table[tile %6] mask %8 other %9 : f32[256]
    // through shared memory from [256] reg [0:1 0:2 0:128] lane [0:4 0:8 0:16 0:32 0:64] warp [] to [256] reg [0:32 0:64 0:128] lane [0:1 0:2 0:4 0:8 0:16] warp []
    auto* const kBuffer0_data = reinterpret_cast<boolean*>(memory + kBuffer0);
    store_vector<boolean>(kBuffer0_data + (at0 + 0), v8_0, v8_1, v8_2, v8_3);
    store_vector<boolean>(kBuffer0_data + (at0 + 128), v8_4, v8_5, v8_6, v8_7);
    __syncthreads();
    bool m1_0;
    load_vector(kBuffer0_data + (at1 + 0), m1_0);
    bool m1_1;
    load_vector(kBuffer0_data + (at1 + 32), m1_1);
    bool m1_2;
    load_vector(kBuffer0_data + (at1 + 64), m1_2);
    bool m1_3;
    load_vector(kBuffer0_data + (at1 + 96), m1_3);
    bool m1_4;
    load_vector(kBuffer0_data + (at1 + 128), m1_4);
    bool m1_5;
    load_vector(kBuffer0_data + (at1 + 160), m1_5);
    bool m1_6;
    load_vector(kBuffer0_data + (at1 + 192), m1_6);
    bool m1_7;
    load_vector(kBuffer0_data + (at1 + 224), m1_7);
    // through shared memory from [256] reg [0:1 0:2 0:128] lane [0:4 0:8 0:16 0:32 0:64] warp [] to [256] reg [0:32 0:64 0:128] lane [0:1 0:2 0:4 0:8 0:16] warp []
    auto* const kBuffer1_data = reinterpret_cast<i32*>(memory + kBuffer1);
    store_vector<i32>(kBuffer1_data + (at0 + 0), unpacked<i32, 0>(raw0_0), unpacked<i32, 1>(raw0_0), unpacked<i32, 2>(raw0_0), unpacked<i32, 3>(raw0_0));
    store_vector<i32>(kBuffer1_data + (at0 + 128), unpacked<i32, 0>(raw0_1), unpacked<i32, 1>(raw0_1), unpacked<i32, 2>(raw0_1), unpacked<i32, 3>(raw0_1));
    __syncthreads();
    i32 m2_0;
    load_vector(kBuffer1_data + (at1 + 0), m2_0);
    i32 m2_1;
    load_vector(kBuffer1_data + (at1 + 32), m2_1);
    i32 m2_2;
    load_vector(kBuffer1_data + (at1 + 64), m2_2);
    i32 m2_3;
    load_vector(kBuffer1_data + (at1 + 96), m2_3);
    i32 m2_4;
    load_vector(kBuffer1_data + (at1 + 128), m2_4);
    i32 m2_5;
    load_vector(kBuffer1_data + (at1 + 160), m2_5);
    i32 m2_6;
    load_vector(kBuffer1_data + (at1 + 192), m2_6);
    i32 m2_7;
    load_vector(kBuffer1_data + (at1 + 224), m2_7);
    auto* const p1 = r0_table.data;
    f32 v10_0 = (-1.0f);
    if (static_cast<u64>(static_cast<i64>(m2_0)) < 1000ll && m1_0) load_vector(p1 + static_cast<i64>(m2_0), v10_0);
    f32 v10_1 = (-1.0f);
    if (static_cast<u64>(static_cast<i64>(m2_1)) < 1000ll && m1_1) load_vector(p1 + static_cast<i64>(m2_1), v10_1);
    f32 v10_2 = (-1.0f);
    if (static_cast<u64>(static_cast<i64>(m2_2)) < 1000ll && m1_2) load_vector(p1 + static_cast<i64>(m2_2), v10_2);
    f32 v10_3 = (-1.0f);
    if (static_cast<u64>(static_cast<i64>(m2_3)) < 1000ll && m1_3) load_vector(p1 + static_cast<i64>(m2_3), v10_3);
    f32 v10_4 = (-1.0f);
    if (static_cast<u64>(static_cast<i64>(m2_4)) < 1000ll && m1_4) load_vector(p1 + static_cast<i64>(m2_4), v10_4);
    f32 v10_5 = (-1.0f);
    if (static_cast<u64>(static_cast<i64>(m2_5)) < 1000ll && m1_5) load_vector(p1 + static_cast<i64>(m2_5), v10_5);
    f32 v10_6 = (-1.0f);
    if (static_cast<u64>(static_cast<i64>(m2_6)) < 1000ll && m1_6) load_vector(p1 + static_cast<i64>(m2_6), v10_6);
    f32 v10_7 = (-1.0f);
    if (static_cast<u64>(static_cast<i64>(m2_7)) < 1000ll && m1_7) load_vector(p1 + static_cast<i64>(m2_7), v10_7);
    // store %out[%5 : 256], %10 in_bounds
    auto* const p2 = r2_out.data + v5 + at1;
    store_vector(p2, v10_0);
    store_vector(p2 + 32, v10_1);
    store_vector(p2 + 64, v10_2);
    store_vector(p2 + 96, v10_3);
    store_vector(p2 + 128, v10_4);
    store_vector(p2 + 160, v10_5);
    store_vector(p2 + 192, v10_6);
    store_vector(p2 + 224, v10_7);
}
