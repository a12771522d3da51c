// Generated from @rows_ahead for sm_90a: 2 warps, 0 bytes of shared memory.
#include "cuda/device/ptx/matrix_move.cuh"
#include "cuda/device/ptx/mma.cuh"
#include "cuda/device/tile/memory.cuh"
using namespace twd;

extern "C" __global__ void __launch_bounds__(64, 1) kernel_rows_ahead(const __grid_constant__ Array<bf16, 2> r0_x, const __grid_constant__ Array<f32, 2> r1_e, const __grid_constant__ Array<f32, 1> r2_a, const __grid_constant__ Array<f16, 1> r3_c, const __grid_constant__ Array<f32, 2> r4_y, const __grid_constant__ Array<f32, 2> r5_z) {
    extern __shared__ __align__(1024) u8 memory[];
    [[maybe_unused]] const u32 memory_address = shared_address(memory);
    [[maybe_unused]] const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int at0 = lane * 8 + warp * 256;
    const int at1 = lane + warp * 32;
    // for_loop over 0 carries
    uint4 l0_raw14_0 = {}, l0_raw14_1 = {};
    f32 l0_raw16 = {};
    f32 l0_raw17 = {};
    f32 l0_raw19 = {};
    if (0ll < 8ll) {
        const bool p0_ok = static_cast<u64>(0ll) < 7ll;
        auto* const p0 = r0_x.data + (0ll) * 1024ll + 0ll + at0;
        l0_raw14_0 = {};
        if (p0_ok) load_raw(p0, l0_raw14_0);
        l0_raw14_1 = {};
        if (p0_ok) load_raw(p0 + 512, l0_raw14_1);
        const bool p1_ok = static_cast<u64>(0ll) < 7ll;
        auto* const p1 = r1_e.data + (0ll) * 64ll + 0ll + at1;
        l0_raw16 = {};
        if (p1_ok) load_vector(p1, l0_raw16);
        const bool p2_ok = static_cast<u64>(0ll) < 7ll;
        auto* const p2 = r2_a.data + 0ll;
        l0_raw17 = {};
        if (p2_ok) load_vector(p2 + ptx::lane_zero(), l0_raw17);
        const i64 n1 = ops::sub(6ll, 0ll);
        const bool p3_ok = static_cast<u64>(n1) < 7ll;
        auto* const p3 = r3_c.data + n1;
        l0_raw19 = {};
        if (p3_ok) load_vector(p3 + ptx::lane_zero(), l0_raw19);
    }
    #pragma unroll 1
    for (i64 v13 = 0ll; v13 < 8ll; v13 += 1ll) {
        const uint4 l0_now14_0 = l0_raw14_0;
        const uint4 l0_now14_1 = l0_raw14_1;
        const f32 l0_now16 = l0_raw16;
        const f32 l0_now17 = l0_raw17;
        const f32 l0_now19 = l0_raw19;
        // the next iteration's
        if ((v13 + 1ll) < 8ll) {
            const bool p4_ok = static_cast<u64>((v13 + 1ll)) < 7ll;
            auto* const p4 = r0_x.data + ((v13 + 1ll)) * 1024ll + 0ll + at0;
            l0_raw14_0 = {};
            if (p4_ok) load_raw(p4, l0_raw14_0);
            l0_raw14_1 = {};
            if (p4_ok) load_raw(p4 + 512, l0_raw14_1);
            const bool p5_ok = static_cast<u64>((v13 + 1ll)) < 7ll;
            auto* const p5 = r1_e.data + ((v13 + 1ll)) * 64ll + 0ll + at1;
            l0_raw16 = {};
            if (p5_ok) load_vector(p5, l0_raw16);
            const bool p6_ok = static_cast<u64>((v13 + 1ll)) < 7ll;
            auto* const p6 = r2_a.data + (v13 + 1ll);
            l0_raw17 = {};
            if (p6_ok) load_vector(p6 + ptx::lane_zero(), l0_raw17);
            const i64 n2 = ops::sub(6ll, (v13 + 1ll));
            const bool p7_ok = static_cast<u64>(n2) < 7ll;
            auto* const p7 = r3_c.data + n2;
            l0_raw19 = {};
            if (p7_ok) load_vector(p7 + ptx::lane_zero(), l0_raw19);
        }
        // %xl = load %x[%i, %zero : 1024] other %words : bf16[1024]
        // %el = load %e[%i, %zero : 64] other %none : f32[64]
        // %al = load %a[%i] other %none : f32
        // %back = sub %last, %i : i64
        const i64 v18 = ops::sub(6ll, v13);
        // %cl = load %c[%back] other %half : f16
        // %cf = cast %cl : f32
        // %p = fma %xf, %ab, %cb : f32[1024]
        const f32 v23_0 = ops::fma(unpacked<bf16, 0>(l0_now14_0), l0_now17, l0_now19);
        const f32 v23_1 = ops::fma(unpacked<bf16, 1>(l0_now14_0), l0_now17, l0_now19);
        const f32 v23_2 = ops::fma(unpacked<bf16, 2>(l0_now14_0), l0_now17, l0_now19);
        const f32 v23_3 = ops::fma(unpacked<bf16, 3>(l0_now14_0), l0_now17, l0_now19);
        const f32 v23_4 = ops::fma(unpacked<bf16, 4>(l0_now14_0), l0_now17, l0_now19);
        const f32 v23_5 = ops::fma(unpacked<bf16, 5>(l0_now14_0), l0_now17, l0_now19);
        const f32 v23_6 = ops::fma(unpacked<bf16, 6>(l0_now14_0), l0_now17, l0_now19);
        const f32 v23_7 = ops::fma(unpacked<bf16, 7>(l0_now14_0), l0_now17, l0_now19);
        const f32 v23_8 = ops::fma(unpacked<bf16, 0>(l0_now14_1), l0_now17, l0_now19);
        const f32 v23_9 = ops::fma(unpacked<bf16, 1>(l0_now14_1), l0_now17, l0_now19);
        const f32 v23_10 = ops::fma(unpacked<bf16, 2>(l0_now14_1), l0_now17, l0_now19);
        const f32 v23_11 = ops::fma(unpacked<bf16, 3>(l0_now14_1), l0_now17, l0_now19);
        const f32 v23_12 = ops::fma(unpacked<bf16, 4>(l0_now14_1), l0_now17, l0_now19);
        const f32 v23_13 = ops::fma(unpacked<bf16, 5>(l0_now14_1), l0_now17, l0_now19);
        const f32 v23_14 = ops::fma(unpacked<bf16, 6>(l0_now14_1), l0_now17, l0_now19);
        const f32 v23_15 = ops::fma(unpacked<bf16, 7>(l0_now14_1), l0_now17, l0_now19);
        // store %y[%i, %zero : 1024], %p
        __syncthreads();
        const bool p8_ok = static_cast<u64>(v13) < 7ll;
        auto* const p8 = r4_y.data + (v13) * 1024ll + 0ll + at0;
        if (p8_ok) store_vector(p8, v23_0, v23_1, v23_2, v23_3);
        if (p8_ok) store_vector(p8 + 4, v23_4, v23_5, v23_6, v23_7);
        if (p8_ok) store_vector(p8 + 512, v23_8, v23_9, v23_10, v23_11);
        if (p8_ok) store_vector(p8 + 516, v23_12, v23_13, v23_14, v23_15);
        // %q = mul %el, %ae : f32[64]
        const f32 v25 = l0_now16 * l0_now17;
        // store %z[%i, %zero : 64], %q
        const bool p9_ok = static_cast<u64>(v13) < 7ll;
        auto* const p9 = r5_z.data + (v13) * 64ll + 0ll + at1;
        if (p9_ok) store_vector(p9, v25);
    }
}
