// Generated from @gradients for sm_90a: 12 warps, 229504 bytes of shared memory.
#include "cuda/device/tile/hopper.cuh"
#include "wgmma_shapes.cuh"
using namespace twd;

extern "C" __global__ void __launch_bounds__(384, 1) kernel_gradients(const __grid_constant__ Array<bf16, 2> ref_query, const __grid_constant__ Array<bf16, 2> ref_key, const __grid_constant__ Array<bf16, 2> ref_value, const __grid_constant__ Array<bf16, 2> ref_dout, const __grid_constant__ Array<f32, 1> ref_sums, const __grid_constant__ Array<bf16, 2> ref_dk, const __grid_constant__ Array<bf16, 2> ref_dv, const i64 grid0, const __grid_constant__ TensorMap key_map0, const __grid_constant__ TensorMap value_map1, const __grid_constant__ TensorMap query_map2, const __grid_constant__ TensorMap dout_map3, const __grid_constant__ TensorMap dk_map4, const __grid_constant__ TensorMap dv_map5) {
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = shared_address(memory);
    constexpr u32 k_key_tile0 = 0;  // 1 x 32768 bytes
    constexpr u32 k_query_tile1 = 32768;  // 3 x 16384 bytes
    constexpr u32 k_value_tile2 = 81920;  // 1 x 32768 bytes
    constexpr u32 k_dout_tile3 = 114688;  // 3 x 16384 bytes
    constexpr u32 k_dk_panel4 = 163840;  // 2 x 8192 bytes of each warpgroup
    constexpr u32 k_dv_panel5 = 196608;  // 2 x 8192 bytes of each warpgroup
    const u32 lane = threadIdx.x % 32;
    const u32 group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        for (u32 slot = 0; slot < 1; ++slot) {
            ptx::mbarrier_init(base + 229376 + 8 * slot, 1);
            ptx::mbarrier_init(base + 229384 + 8 * slot, 8);
        }
        for (u32 slot = 0; slot < 3; ++slot) {
            ptx::mbarrier_init(base + 229392 + 8 * slot, 1);
            ptx::mbarrier_init(base + 229416 + 8 * slot, 8);
        }
        for (u32 slot = 0; slot < 1; ++slot) {
            ptx::mbarrier_init(base + 229440 + 8 * slot, 1);
            ptx::mbarrier_init(base + 229448 + 8 * slot, 8);
        }
        for (u32 slot = 0; slot < 3; ++slot) {
            ptx::mbarrier_init(base + 229456 + 8 * slot, 1);
            ptx::mbarrier_init(base + 229480 + 8 * slot, 8);
        }
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    const u32 inner = 32u;
    const u32 others = 1;
    const u32 programs = inner * others;
    if (group >= 2 && group < 3) {
        ptx::registers_decrease<24>();
        if (threadIdx.x / 32 == 8 && ptx::elect_lane()) {
            Slot<1> v47{0, 1};
            Slot<3> v49{0, 1};
            Slot<1> v51{0, 1};
            Slot<3> v53{0, 1};
            for (u32 program = blockIdx.x; program < programs; program += gridDim.x) {
                u32 of_0 = program % inner;
                const i64 program0 = of_0;
                const i64 s57 = ops::mul(program0, 128ll);
                ptx::mbarrier_wait(base + 229384 + 8 * v47.at, v47.parity);
                ptx::mbarrier_arrive_expect(base + 229376 + 8 * v47.at, 32768);
                TW_UNROLL for (int p = 0; p < 2; ++p) {
                    ptx::tensor_load(base + k_key_tile0 + v47.at * 32768 + p * 16384, &key_map0, base + 229376 + 8 * v47.at, coordinate(0ll) + p * 64, coordinate(s57));
                }
                ptx::mbarrier_wait(base + 229448 + 8 * v51.at, v51.parity);
                ptx::mbarrier_arrive_expect(base + 229440 + 8 * v51.at, 32768);
                TW_UNROLL for (int p = 0; p < 2; ++p) {
                    ptx::tensor_load(base + k_value_tile2 + v51.at * 32768 + p * 16384, &value_map1, base + 229440 + 8 * v51.at, coordinate(0ll) + p * 64, coordinate(s57));
                }
                TW_ROLLED for (i64 s61 = 0ll; s61 < 4000ll; s61 = next_index(s61, 4000ll, 64ll)) {
                    ptx::mbarrier_wait(base + 229416 + 8 * v49.at, v49.parity);
                    ptx::mbarrier_arrive_expect(base + 229392 + 8 * v49.at, 16384);
                    TW_UNROLL for (int p = 0; p < 2; ++p) {
                        ptx::tensor_load(base + k_query_tile1 + v49.at * 16384 + p * 8192, &query_map2, base + 229392 + 8 * v49.at, coordinate(0ll) + p * 64, coordinate(s61));
                    }
                    ptx::mbarrier_wait(base + 229480 + 8 * v53.at, v53.parity);
                    ptx::mbarrier_arrive_expect(base + 229456 + 8 * v53.at, 16384);
                    TW_UNROLL for (int p = 0; p < 2; ++p) {
                        ptx::tensor_load(base + k_dout_tile3 + v53.at * 16384 + p * 8192, &dout_map3, base + 229456 + 8 * v53.at, coordinate(0ll) + p * 64, coordinate(s61));
                    }
                    v53.next();
                    v49.next();
                }
                v47.next();
                v51.next();
            }
        }
        return;
    }
    if (group < 2) {
        ptx::registers_increase<240>();
        if (group == 1) ptx::named_barrier_arrive(4 + (group ^ 1), 256);
        Slot<1> v74{0, 0};
        Slot<3> v76{0, 0};
        Slot<1> v78{0, 0};
        Slot<3> v80{0, 0};
        for (u32 program = blockIdx.x; program < programs; program += gridDim.x) {
            u32 of_0 = program % inner;
            const i64 program0 = of_0;
            const i64 s84 = ops::mul(program0, 128ll);
            ptx::mbarrier_wait(base + 229376 + 8 * v74.at, v74.parity);
            ptx::mbarrier_wait(base + 229440 + 8 * v78.at, v78.parity);
            f32 v90[64];
            TW_UNROLL for (int i = 0; i < 64; ++i) v90[i] = 0.0f;
            f32 v91[64];
            TW_UNROLL for (int i = 0; i < 64; ++i) v91[i] = 0.0f;
            TW_ROLLED for (i64 s89 = 0ll; s89 < 4000ll; s89 = next_index(s89, 4000ll, 64ll)) {
                f32 v94[16];
                if (s89 >= 0 && s89 + 64 <= ref_sums.extent[0] && (s89) % 2 == 0) {
                    TW_UNROLL for (int i = 0; i < 16; i += 2) {
                        const i64 at0 = s89 + static_cast<int>((lane % 4 * 2) + 0) + (i % 2 + i / 2 * 8);
                        load_vector(ref_sums.data + at0, v94[i], v94[i + 1]);
                    }
                }
                else {
                    TW_UNROLL for (int i = 0; i < 16; i += 2) {
                        const i64 at0 = s89 + static_cast<int>((lane % 4 * 2) + 0) + (i % 2 + i / 2 * 8);
                        load_pair(ref_sums.data, at0, true && is_inside(at0, ref_sums.extent[0]), true && is_inside(at0 + 1, ref_sums.extent[0]), v94[i], v94[i + 1]);
                    }
                }
                f32 v95[32];
                ptx::mbarrier_wait(base + 229392 + 8 * v76.at, v76.parity);
                ptx::named_barrier_sync(4 + group, 256);
                ptx::wgmma_fence();
                ptx::wgmma<0, 0, ptx::AlongRows<16384>, ptx::AlongRows<8192>>(Bf16{}, ptx::Steps<8>{}, v95,
                    ptx::wgmma_descriptor_swizzle128(base + k_key_tile0 + v74.at * 32768 + group * 8192, 16, 1024),
                    ptx::wgmma_descriptor_swizzle128(base + k_query_tile1 + v76.at * 16384, 16, 1024), 0);
                ptx::wgmma_commit();
                f32 v97[32];
                ptx::mbarrier_wait(base + 229456 + 8 * v80.at, v80.parity);
                ptx::wgmma_fence();
                ptx::wgmma<0, 0, ptx::AlongRows<16384>, ptx::AlongRows<8192>>(Bf16{}, ptx::Steps<8>{}, v97,
                    ptx::wgmma_descriptor_swizzle128(base + k_value_tile2 + v78.at * 32768 + group * 8192, 16, 1024),
                    ptx::wgmma_descriptor_swizzle128(base + k_dout_tile3 + v80.at * 16384, 16, 1024), 0);
                ptx::wgmma_commit();
                ptx::named_barrier_arrive(4 + (group ^ 1), 256);
                ptx::wgmma_wait<1>();
                ptx::wgmma_tie(v95);
                f32 v101[32];
                TW_UNROLL for (int i = 0; i < 32; ++i) v101[i] = v95[i] - v94[((i % 2 + i / 4 * 2))];
                f32 v102[32];
                TW_UNROLL for (int i = 0; i < 32; ++i) v102[i] = ops::tanh(v101[i]);
                u32 v103[16];
                TW_UNROLL for (int i = 0; i < 16; ++i) v103[i] = ptx::pack(Bf16{}, v102[(2 * i)], v102[(2 * i + 1)]);
                ptx::wgmma_tie(v91);
                ptx::wgmma_tie(v103);
                ptx::wgmma_fence();
                ptx::wgmma<1, ptx::AlongColumns>(Bf16{}, ptx::Steps<4>{}, v91, v103,
                    ptx::wgmma_descriptor_swizzle128(base + k_dout_tile3 + v80.at * 16384, 8192, 1024), 1);
                ptx::wgmma_commit();
                ptx::wgmma_wait<1>();
                ptx::wgmma_tie(v97);
                f32 v106[32];
                TW_UNROLL for (int i = 0; i < 32; ++i) v106[i] = v102[i] * v97[i];
                u32 v107[16];
                TW_UNROLL for (int i = 0; i < 16; ++i) v107[i] = ptx::pack(Bf16{}, v106[(2 * i)], v106[(2 * i + 1)]);
                ptx::wgmma_tie(v90);
                ptx::wgmma_tie(v107);
                ptx::wgmma_fence();
                ptx::wgmma<1, ptx::AlongColumns>(Bf16{}, ptx::Steps<4>{}, v90, v107,
                    ptx::wgmma_descriptor_swizzle128(base + k_query_tile1 + v76.at * 16384, 8192, 1024), 1);
                ptx::wgmma_commit();
                ptx::wgmma_wait<0>();
                ptx::wgmma_tie(v91);
                ptx::wgmma_tie(v103);
                ptx::wgmma_tie(v90);
                ptx::wgmma_tie(v107);
                if (lane == 0) ptx::mbarrier_arrive(base + 229480 + 8 * v80.at);
                v80.next();
                if (lane == 0) ptx::mbarrier_arrive(base + 229416 + 8 * v76.at);
                v76.next();
            }
            if (lane == 0) ptx::mbarrier_arrive(base + 229384 + 8 * v74.at);
            v74.next();
            if (lane == 0) ptx::mbarrier_arrive(base + 229448 + 8 * v78.at);
            v78.next();
            TW_ROLLED for (i64 spanel = 0; spanel < 2; ++spanel) {
                const i64 s132 = ops::mul(spanel, 64ll);
                if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<1>();
                ptx::named_barrier_sync(1 + group, 128);
                store_panel(Bf16{}, base + k_dk_panel4 + group * 16384, static_cast<u32>(spanel) % 2, v90);
                store_panel(Bf16{}, base + k_dv_panel5 + group * 16384, static_cast<u32>(spanel) % 2, v91);
                const i64 s135 = group / 1 * 64;
                const i64 s136 = ops::add(s84, s135);
                const i64 s137 = ops::add(0ll, s132);
                ptx::fence_async_shared();
                ptx::named_barrier_sync(1 + group, 128);
                if (threadIdx.x % 128 == 0)
                    ptx::tensor_store(&dk_map4, base + k_dk_panel4 + group * 16384 + static_cast<u32>(spanel) % 2 * 8192, coordinate(s137), coordinate(s136));
                const i64 s138 = group / 1 * 64;
                const i64 s139 = ops::add(s84, s138);
                const i64 s140 = ops::add(0ll, s132);
                if (threadIdx.x % 128 == 0)
                    ptx::tensor_store(&dv_map5, base + k_dv_panel5 + group * 16384 + static_cast<u32>(spanel) % 2 * 8192, coordinate(s140), coordinate(s139));
                if (threadIdx.x % 128 == 0) ptx::bulk_commit();
                TW_UNROLL for (int i = 0; i < 32; ++i) v90[i] = v90[i + 32];
                TW_UNROLL for (int i = 0; i < 32; ++i) v91[i] = v91[i + 32];
            }
        }
        if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
        return;
    }
}
