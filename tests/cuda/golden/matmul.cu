// Generated from @product for sm_90a: 12 warps, 229440 bytes of shared memory.
#include "cuda/device/tile/hopper.cuh"
#include "wgmma_shapes.cuh"
using namespace twd;

extern "C" __global__ void __launch_bounds__(384, 1) kernel_product(const __grid_constant__ Array<bf16, 2> ref_x, const __grid_constant__ Array<bf16, 2> ref_y, const __grid_constant__ Array<bf16, 2> ref_z, const i64 grid0, const i64 grid1, const i64 grid2, const __grid_constant__ TensorMap x_map0, const __grid_constant__ TensorMap y_map1, const __grid_constant__ TensorMap z_map2) {
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
    const u32 rows = 8u * 2u;
    const u32 columns = 16u;
    const u32 others = 1;
    const u32 programs = rows * columns * others;
    if (group >= 2 && group < 3) {
        ptx::registers_decrease<40>();
        if (threadIdx.x / 32 == 8 && ptx::elect_lane()) {
            Slot<4> v26{0, 1};
            for (u32 program = blockIdx.x; program < programs; program += gridDim.x) {
                const TilePlace place = tile_order<8>(program % (rows * columns), rows, columns);
                u32 of_0 = place.row;
                const i64 program2 = of_0 % 2u;
                of_0 /= 2u;
                const i64 program0 = of_0;
                u32 of_1 = place.column;
                const i64 program1 = of_1;
                const i64 s32 = ops::mul(program0, 256ll);
                const i64 s33 = ops::mul(program1, 256ll);
                const i64 s36 = ops::mul(program2, 128ll);
                const i64 s37 = ops::add(s32, s36);
                TW_ROLLED for (i64 s40 = 0ll; s40 < 4096ll; s40 = next_index(s40, 4096ll, 64ll)) {
                    ptx::mbarrier_wait(base + 229408 + 8 * v26.at, v26.parity);
                    ptx::mbarrier_arrive_expect(base + 229376 + 8 * v26.at, 49152);
                    ptx::tensor_load(base + k_x_tile0 + v26.at * 16384, &x_map0, base + 229376 + 8 * v26.at, coordinate(s40), coordinate(s37));
                    TW_UNROLL for (int p = 0; p < 4; ++p) {
                        ptx::tensor_load(base + k_y_tile1 + v26.at * 32768 + p * 8192, &y_map1, base + 229376 + 8 * v26.at, coordinate(s33) + p * 64, coordinate(s40));
                    }
                    v26.next();
                }
            }
        }
        return;
    }
    if (group < 2) {
        ptx::registers_increase<232>();
        f32 v46[128];
        set_zero(v46);
        Slot<4> v48{0, 0};
        for (u32 program = blockIdx.x; program < programs; program += gridDim.x) {
            const TilePlace place = tile_order<8>(program % (rows * columns), rows, columns);
            u32 of_0 = place.row;
            const i64 program2 = of_0 % 2u;
            of_0 /= 2u;
            const i64 program0 = of_0;
            u32 of_1 = place.column;
            const i64 program1 = of_1;
            const i64 s54 = ops::mul(program0, 256ll);
            const i64 s55 = ops::mul(program1, 256ll);
            const i64 s58 = ops::mul(program2, 128ll);
            const i64 s59 = ops::add(s54, s58);
            TW_ROLLED for (i64 s62 = 0ll; s62 < 4096ll; s62 = next_index(s62, 4096ll, 64ll)) {
                const bool s65 = s62 > 0ll;
                ptx::mbarrier_wait(base + 229376 + 8 * v48.at, v48.parity);
                ptx::wgmma_tie(v46);
                ptx::wgmma_fence();
                ptx::wgmma<1, 0, ptx::AlongRows<16384>, ptx::AlongColumns>(Bf16{}, ptx::Steps<4>{}, v46,
                    ptx::wgmma_descriptor_swizzle128(base + k_x_tile0 + v48.at * 16384 + group * 8192, 16, 1024),
                    ptx::wgmma_descriptor_swizzle128(base + k_y_tile1 + v48.at * 32768, 8192, 1024), s65);
                ptx::wgmma_commit();
                ptx::wgmma_tie(v46);
                ptx::wgmma_wait<1>();
                const bool s74 = s62 > 0ll;
                if (s74 && lane == 0) ptx::mbarrier_arrive(base + 229408 + 8 * v48.before());
                v48.next();
            }
            const bool sran = 0ll < 4096ll;
            ptx::wgmma_wait<0>();
            ptx::wgmma_tie(v46);
            if (sran && lane == 0) ptx::mbarrier_arrive(base + 229408 + 8 * v48.before());
            TW_ROLLED for (i64 spanel = 0; spanel < 4; ++spanel) {
                const i64 s80 = ops::mul(spanel, 64ll);
                store_panel(Bf16{}, base + k_z_panel2 + group * 16384, static_cast<u32>(spanel) % 2, v46);
                const i64 s82 = group / 1 * 64;
                const i64 s83 = ops::add(s59, s82);
                const i64 s84 = ops::add(s55, s80);
                ptx::fence_async_shared();
                if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<0>();
                ptx::named_barrier_sync(1 + group, 128);
                if (threadIdx.x % 128 == 0)
                    ptx::tensor_store(&z_map2, base + k_z_panel2 + group * 16384 + static_cast<u32>(spanel) % 2 * 8192, coordinate(s84), coordinate(s83));
                if (threadIdx.x % 128 == 0) ptx::bulk_commit();
                TW_UNROLL for (int i = 0; i < 96; ++i) v46[i] = v46[i + 32];
            }
        }
        if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
        return;
    }
}
