// Generated from @running_max for sm_80: 1 warps, 0 bytes of shared memory.
#include "cuda/device/ptx/matrix_move.cuh"
#include "cuda/device/ptx/mma.cuh"
#include "cuda/device/tile/memory.cuh"
using namespace twd;

extern "C" __global__ void __launch_bounds__(32, 1) kernel_running_max(const __grid_constant__ Array<f32, 2> r0_x, const __grid_constant__ Array<f32, 1> r1_out, const i64 grid0) {
    extern __shared__ __align__(1024) u8 memory[];
    [[maybe_unused]] const u32 memory_address = shared_address(memory);
    [[maybe_unused]] const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int at0 = lane * 4;
    u32 program = blockIdx.x;
    const i64 program0 = program;
    // %2 = program_id axis 0 : i64
    // for_loop over 1 carries
    f32 v8_0 = __int_as_float(0xff800000);
    f32 v8_1 = __int_as_float(0xff800000);
    f32 v8_2 = __int_as_float(0xff800000);
    f32 v8_3 = __int_as_float(0xff800000);
    uint4 l0_raw9 = {};
    if (0ll < 4096ll) {
        auto* const p0 = r0_x.data + (program0) * 4096ll + 0ll + at0;
        load_raw(p0, l0_raw9);
    }
    #pragma unroll 1
    for (i64 v7 = 0ll; v7 < 4096ll; v7 += 128ll) {
        const uint4 l0_now9 = l0_raw9;
        // the next iteration's
        if ((v7 + 128ll) < 4096ll) {
            auto* const p1 = r0_x.data + (program0) * 4096ll + (v7 + 128ll) + at0;
            load_raw(p1, l0_raw9);
        }
        // %tile = load %x[%2, %i : 128] in_bounds : f32[128]
        // %next = max %so_far, %tile : f32[128]
        const f32 v10_0 = ops::max(v8_0, unpacked<f32, 0>(l0_now9));
        const f32 v10_1 = ops::max(v8_1, unpacked<f32, 1>(l0_now9));
        const f32 v10_2 = ops::max(v8_2, unpacked<f32, 2>(l0_now9));
        const f32 v10_3 = ops::max(v8_3, unpacked<f32, 3>(l0_now9));
        v8_0 = v10_0;
        v8_1 = v10_1;
        v8_2 = v10_2;
        v8_3 = v10_3;
    }
    // %top = reduce %high max axis 0 : f32
    const f32 v12t0_0_0 = ops::max(v8_0, v8_1);
    const f32 v12t0_0_1 = ops::max(v8_2, v8_3);
    const f32 v12t0_1_0 = ops::max(v12t0_0_0, v12t0_0_1);
    f32 v12 = v12t0_1_0;
    const f32 v12l0 = __shfl_xor_sync(0xffffffffu, v12, 1);
    v12 = ops::max(v12, v12l0);
    const f32 v12l1 = __shfl_xor_sync(0xffffffffu, v12, 2);
    v12 = ops::max(v12, v12l1);
    const f32 v12l2 = __shfl_xor_sync(0xffffffffu, v12, 4);
    v12 = ops::max(v12, v12l2);
    const f32 v12l3 = __shfl_xor_sync(0xffffffffu, v12, 8);
    v12 = ops::max(v12, v12l3);
    const f32 v12l4 = __shfl_xor_sync(0xffffffffu, v12, 16);
    v12 = ops::max(v12, v12l4);
    // store %out[%2], %top in_bounds
    auto* const p2 = r1_out.data + program0;
    if (lane == 0) store_vector(p2, v12);
}
