// Generated from @product for sm_90a: 12 warps, 229440 bytes of shared memory.
#include "cuda/device/tile/hopper.cuh"
#include "wgmma_shapes.cuh"
using namespace twd;

extern "C" __global__ void __launch_bounds__(384, 1) kernel_product(const __grid_constant__ Array<bf16, 2> ref_x, const __grid_constant__ Array<bf16, 2> ref_y, const __grid_constant__ Array<bf16, 2> ref_z, const i64 grid0, const i64 grid1, const i64 grid2, const i64 grid3, const __grid_constant__ TensorMap y_map1, const __grid_constant__ TensorMap x_map0_half, const __grid_constant__ TensorMap z_map2) {
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
            ptx::mbarrier_init(base + 229408 + 8 * slot, 24);
        }
        ptx::fence_mbarrier_init();
    }
    const u32 rank = ptx::cluster_rank();
    __syncwarp();
    ptx::cluster_arrive();
    ptx::cluster_wait();
    const u32 all_rows = 33u;
    const u32 rows = (all_rows + 1) / 2;  // pairs
    const u32 all_columns = 17u;
    const u32 columns = (all_columns + 1) / 2;  // pairs
    const u32 others = 1u * 1u;
    const u32 programs = rows * columns * others;
    if (group >= 2 && group < 3) {
        ptx::registers_decrease<40>();
        if (threadIdx.x / 32 == 8 && ptx::elect_lane()) {
            Slot<4> v27{0, 1};
            for (u32 program = blockIdx.x / 4; program < programs; program += gridDim.x / 4) {
                const TilePlace place = tile_order<4>(program % (rows * columns), rows, columns);
                u32 of_2 = of_pair(place.row, rank % 2, all_rows);
                const i64 program2 = of_2;
                u32 of_3 = of_pair(place.column, rank / 2, all_columns);
                const i64 program3 = of_3;
                u32 of_0 = program / (rows * columns);
                const i64 program1 = of_0 % 1u;
                of_0 /= 1u;
                const i64 program0 = of_0;
                const i64 s34 = ops::mul(program2, 128ll);
                const i64 s36 = ops::mul(program3, 256ll);
                TW_ROLLED for (i64 s38 = 0ll; s38 < 4160ll; s38 = next_index(s38, 4160ll, 64ll)) {
                    ptx::mbarrier_wait(base + 229408 + 8 * v27.at, v27.parity);
                    ptx::mbarrier_arrive_expect(base + 229376 + 8 * v27.at, 49152);
                    ptx::tensor_load_multicast(base + k_x_tile0 + v27.at * 16384 + rank / 2 * 8192, &x_map0_half, base + 229376 + 8 * v27.at, 5 << (rank & 1), coordinate(s38), coordinate(s34) + rank / 2 * 64);
                    TW_UNROLL for (int q = 0; q < 2; ++q) {
                        const u32 p = rank % 2 * 2 + q;
                        ptx::tensor_load_multicast(base + k_y_tile1 + v27.at * 32768 + p * 8192, &y_map1, base + 229376 + 8 * v27.at, 3 << (rank & 2), coordinate(s36) + p * 64, coordinate(s38));
                    }
                    v27.next();
                }
            }
        }
    }
    if (group < 2) {
        ptx::registers_increase<232>();
        f32 v44[128];
        set_zero(v44);
        Slot<4> v46{0, 0};
        for (u32 program = blockIdx.x / 4; program < programs; program += gridDim.x / 4) {
            const TilePlace place = tile_order<4>(program % (rows * columns), rows, columns);
            u32 of_2 = of_pair(place.row, rank % 2, all_rows);
            const i64 program2 = of_2;
            u32 of_3 = of_pair(place.column, rank / 2, all_columns);
            const i64 program3 = of_3;
            u32 of_0 = program / (rows * columns);
            const i64 program1 = of_0 % 1u;
            of_0 /= 1u;
            const i64 program0 = of_0;
            const i64 s53 = ops::mul(program2, 128ll);
            const i64 s55 = ops::mul(program3, 256ll);
            TW_ROLLED for (i64 s57 = 0ll; s57 < 4160ll; s57 = next_index(s57, 4160ll, 64ll)) {
                const bool s60 = s57 > 0ll;
                ptx::mbarrier_wait(base + 229376 + 8 * v46.at, v46.parity);
                ptx::wgmma_tie(v44);
                ptx::wgmma_fence();
                ptx::wgmma<1, 0, ptx::AlongRows<16384>, ptx::AlongColumns>(Bf16{}, ptx::Steps<4>{}, v44,
                    ptx::wgmma_descriptor_swizzle128(base + k_x_tile0 + v46.at * 16384 + group * 8192, 16, 1024),
                    ptx::wgmma_descriptor_swizzle128(base + k_y_tile1 + v46.at * 32768, 8192, 1024), s60);
                ptx::wgmma_commit();
                ptx::wgmma_wait<1>();
                const bool s69 = s57 > 0ll;
                if (s69 && lane < 3)
                    ptx::mbarrier_arrive_cluster(ptx::cluster_map(base + 229408 + 8 * v46.before(), rank ^ lane));
                v46.next();
            }
            const bool sran = 0ll < 4160ll;
            ptx::wgmma_wait<0>();
            ptx::wgmma_tie(v44);
            if (sran && lane < 3)
                ptx::mbarrier_arrive_cluster(ptx::cluster_map(base + 229408 + 8 * v46.before(), rank ^ lane));
            TW_UNROLL for (i64 spanel = 0; spanel < 4; ++spanel) {
                const i64 s75 = ops::mul(spanel, 64ll);
                if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<1>();
                ptx::named_barrier_sync(1 + group, 128);
                store_panel(Bf16{}, base + k_z_panel2 + group * 16384, static_cast<u32>(spanel) % 2, v44);
                const i64 s77 = group / 1 * 64;
                const i64 s78 = ops::add(s53, s77);
                const i64 s79 = ops::add(s55, s75);
                ptx::fence_async_shared();
                ptx::named_barrier_sync(1 + group, 128);
                if (threadIdx.x % 128 == 0)
                    ptx::tensor_store(&z_map2, base + k_z_panel2 + group * 16384 + static_cast<u32>(spanel) % 2 * 8192, coordinate(s79), coordinate(s78));
                if (threadIdx.x % 128 == 0) ptx::bulk_commit();
                TW_UNROLL for (int i = 0; i < 96; ++i) v44[i] = v44[i + 32];
            }
        }
        if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
    }
    __syncwarp();
    ptx::cluster_arrive();
    ptx::cluster_wait();
}
