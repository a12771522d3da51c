// Generated from @product for sm_90a: 12 warps, 229440 bytes of shared memory.
#include "cuda/device/tile/hopper.cuh"
#include "wgmma_shapes.cuh"
using namespace twd;

extern "C" __global__ void __launch_bounds__(384, 1) kernel_product(const __grid_constant__ Array<bf16, 2> ref_x, const __grid_constant__ Array<bf16, 2> ref_y, const __grid_constant__ Array<bf16, 2> ref_z, const i64 grid0, const i64 grid1, const i64 grid2, const i64 grid3, const __grid_constant__ TensorMap x_map0, const __grid_constant__ TensorMap y_map1, const __grid_constant__ TensorMap z_map2) {
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = shared_address(memory);
    constexpr u32 k_x_tile0 = 0;  // 4 x 16384 bytes
    constexpr u32 k_y_tile1 = 65536;  // 4 x 32768 bytes
    constexpr u32 k_z_panel2 = 196608;  // 2 x 8192 bytes of each warpgroup
    const u32 lane = threadIdx.x % 32;
    const u32 group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        for (u32 slot = 0; slot < 4; ++slot) {
            ptx::mbarrier_init(base + 229376 + 8 * slot, 1);
            ptx::mbarrier_init(base + 229408 + 8 * slot, 8);
        }
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    const u32 rows = 16u;
    const u32 columns = 16u;
    const u32 others = 1u * 1u;
    const u32 programs = rows * columns * others;
    if (group >= 2 && group < 3) {
        ptx::registers_decrease<40>();
        if (threadIdx.x / 32 == 8 && ptx::elect_lane()) {
            Slot<4> v23{0, 1};
            for (u32 program = blockIdx.x; program < programs; program += gridDim.x) {
                const TilePlace place = tile_order<8>(program % (rows * columns), rows, columns);
                u32 of_2 = place.row;
                const i64 program2 = of_2;
                u32 of_3 = place.column;
                const i64 program3 = of_3;
                u32 of_0 = program / (rows * columns);
                const i64 program1 = of_0 % 1u;
                of_0 /= 1u;
                const i64 program0 = of_0;
                const i64 s29 = ops::mul(program2, 128ll);
                const i64 s31 = ops::mul(program3, 256ll);
                TW_ROLLED for (i64 s34 = 0ll; s34 < 4096ll; s34 = next_index(s34, 4096ll, 64ll)) {
                    ptx::mbarrier_wait(base + 229408 + 8 * v23.at, v23.parity);
                    ptx::mbarrier_arrive_expect(base + 229376 + 8 * v23.at, 49152);
                    ptx::tensor_load(base + k_x_tile0 + v23.at * 16384, &x_map0, base + 229376 + 8 * v23.at, coordinate(s34), coordinate(s29));
                    TW_UNROLL for (int p = 0; p < 4; ++p) {
                        ptx::tensor_load(base + k_y_tile1 + v23.at * 32768 + p * 8192, &y_map1, base + 229376 + 8 * v23.at, coordinate(s31) + p * 64, coordinate(s34));
                    }
                    v23.next();
                }
            }
        }
        return;
    }
    if (group < 2) {
        ptx::registers_increase<232>();
        f32 v40[128];
        set_zero(v40);
        Slot<4> v42{0, 0};
        for (u32 program = blockIdx.x; program < programs; program += gridDim.x) {
            const TilePlace place = tile_order<8>(program % (rows * columns), rows, columns);
            u32 of_2 = place.row;
            const i64 program2 = of_2;
            u32 of_3 = place.column;
            const i64 program3 = of_3;
            u32 of_0 = program / (rows * columns);
            const i64 program1 = of_0 % 1u;
            of_0 /= 1u;
            const i64 program0 = of_0;
            const i64 s48 = ops::mul(program2, 128ll);
            const i64 s50 = ops::mul(program3, 256ll);
            TW_ROLLED for (i64 s53 = 0ll; s53 < 4096ll; s53 = next_index(s53, 4096ll, 64ll)) {
                const bool s56 = s53 > 0ll;
                ptx::mbarrier_wait(base + 229376 + 8 * v42.at, v42.parity);
                ptx::wgmma_tie(v40);
                ptx::wgmma_fence();
                ptx::wgmma<1, 0, ptx::AlongRows<16384>, ptx::AlongColumns>(Bf16{}, ptx::Steps<4>{}, v40,
                    ptx::wgmma_descriptor_swizzle128(base + k_x_tile0 + v42.at * 16384 + group * 8192, 16, 1024),
                    ptx::wgmma_descriptor_swizzle128(base + k_y_tile1 + v42.at * 32768, 8192, 1024), s56);
                ptx::wgmma_commit();
                ptx::wgmma_wait<1>();
                const bool s65 = s53 > 0ll;
                if (s65 && lane == 0) ptx::mbarrier_arrive(base + 229408 + 8 * v42.before());
                v42.next();
            }
            const bool sran = 0ll < 4096ll;
            ptx::wgmma_wait<0>();
            ptx::wgmma_tie(v40);
            if (sran && lane == 0) ptx::mbarrier_arrive(base + 229408 + 8 * v42.before());
            TW_UNROLL for (i64 spanel = 0; spanel < 4; ++spanel) {
                const i64 s71 = ops::mul(spanel, 64ll);
                if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<1>();
                ptx::named_barrier_sync(1 + group, 128);
                store_panel(Bf16{}, base + k_z_panel2 + group * 16384, static_cast<u32>(spanel) % 2, v40);
                const i64 s73 = group / 1 * 64;
                const i64 s74 = ops::add(s48, s73);
                const i64 s75 = ops::add(s50, s71);
                ptx::fence_async_shared();
                ptx::named_barrier_sync(1 + group, 128);
                if (threadIdx.x % 128 == 0)
                    ptx::tensor_store(&z_map2, base + k_z_panel2 + group * 16384 + static_cast<u32>(spanel) % 2 * 8192, coordinate(s75), coordinate(s74));
                if (threadIdx.x % 128 == 0) ptx::bulk_commit();
                TW_UNROLL for (int i = 0; i < 96; ++i) v40[i] = v40[i + 32];
            }
        }
        if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
        return;
    }
}
