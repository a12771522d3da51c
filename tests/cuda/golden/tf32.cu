// Generated from @product for sm_90a: 12 warps, 196672 bytes of shared memory.
#include "cuda/device/tile/hopper.cuh"
#include "wgmma_shapes.cuh"
using namespace twd;

extern "C" __global__ void __launch_bounds__(384, 1) kernel_product(const __grid_constant__ Array<f32, 2> ref_x, const __grid_constant__ Array<f32, 2> ref_y, const __grid_constant__ Array<f32, 2> ref_z, const i64 grid0, const i64 grid1, const i64 grid2, const i64 grid3, const __grid_constant__ TensorMap x_map0, const __grid_constant__ TensorMap y_map1) {
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = shared_address(memory);
    constexpr u32 k_x_tile0 = 0;  // 4 x 32768 bytes
    constexpr u32 k_y_tile1 = 131072;  // 4 x 16384 bytes
    const u32 lane = threadIdx.x % 32;
    const u32 group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        for (u32 slot = 0; slot < 4; ++slot) {
            ptx::mbarrier_init(base + 196608 + 8 * slot, 1);
            ptx::mbarrier_init(base + 196640 + 8 * slot, 8);
        }
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    const u32 rows = 16u;
    const u32 columns = 32u;
    const u32 others = 1u * 1u;
    const u32 programs = rows * columns * others;
    if (group >= 2 && group < 3) {
        ptx::registers_decrease<40>();
        if (threadIdx.x / 32 == 8 && ptx::elect_lane()) {
            Slot<4> v25{0, 1};
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
                const i64 s30 = ops::mul(program2, 256ll);
                const i64 s33 = ops::mul(program3, 128ll);
                TW_ROLLED for (i64 s36 = 0ll; s36 < 4096ll; s36 = next_index(s36, 4096ll, 32ll)) {
                    ptx::mbarrier_wait(base + 196640 + 8 * v25.at, v25.parity);
                    ptx::mbarrier_arrive_expect(base + 196608 + 8 * v25.at, 49152);
                    ptx::tensor_load(base + k_x_tile0 + v25.at * 32768, &x_map0, base + 196608 + 8 * v25.at, coordinate(s36), coordinate(s30));
                    TW_UNROLL for (int p = 0; p < 4; ++p) {
                        ptx::tensor_load(base + k_y_tile1 + v25.at * 16384 + p * 4096, &y_map1, base + 196608 + 8 * v25.at, coordinate(s33) + p * 32, coordinate(s36));
                    }
                    v25.next();
                }
            }
        }
        return;
    }
    if (group < 2) {
        ptx::registers_increase<232>();
        f32 v42[128];
        set_zero(v42);
        Slot<4> v44{0, 0};
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
            const i64 s49 = ops::mul(program2, 256ll);
            const i64 s52 = ops::mul(program3, 128ll);
            TW_ROLLED for (i64 s55 = 0ll; s55 < 4096ll; s55 = next_index(s55, 4096ll, 32ll)) {
                const bool s58 = s55 > 0ll;
                ptx::mbarrier_wait(base + 196608 + 8 * v44.at, v44.parity);
                u32 v59[16];
                read_fragments(v59, base + k_y_tile1 + v44.at * 16384 + group * 8192);
                __syncwarp();
                ptx::wgmma_tie(v42);
                ptx::wgmma_tie(v59);
                ptx::wgmma_fence();
                ptx::wgmma<0, ptx::AlongRows<32768>>(Tf32{}, ptx::Steps<4>{}, v42, v59,
                    ptx::wgmma_descriptor_swizzle128(base + k_x_tile0 + v44.at * 32768, 16, 1024), s58);
                ptx::wgmma_commit();
                ptx::wgmma_wait<0>();
                ptx::wgmma_tie(v42);
                ptx::wgmma_tie(v59);
                if (lane == 0) ptx::mbarrier_arrive(base + 196640 + 8 * v44.at);
                v44.next();
            }
            TW_ROLLED for (i64 spanel = 0; spanel < 4; ++spanel) {
                const i64 s73 = ops::mul(spanel, 64ll);
                f32 v75[32];
                TW_UNROLL for (int i = 0; i < 32; ++i) v75[i] = v42[i] + 0.0f;
                const i64 s76 = ops::add(s49, s73);
                TW_UNROLL for (int j = 0; j < 16; ++j) {
                    const int i = j / 2 * 4 + j % 2;
                    const i64 at0 = s76 + static_cast<int>((lane % 4 * 2) + 0) + (i % 2 + i / 4 * 8);
                    const i64 at1 = s52 + static_cast<int>((lane / 4 % 2 * 2 + lane / 8 % 2 * 16 + lane / 16 * 4) + ((threadIdx.x / 32) % 2 * 8 + (threadIdx.x / 32) / 2 * 32)) + (i / 2 % 2);
                    store_pair(ref_z.data, at0 * ref_z.stride[0] + at1, true, true, v75[i], v75[(i + 2)]);
                }
                TW_UNROLL for (int i = 0; i < 96; ++i) v42[i] = v42[i + 32];
            }
        }
        return;
    }
}
