// Generated from @attention for sm_90a: 12 warps, 196688 bytes of shared memory.
#include "cuda/device/tile/hopper.cuh"
#include "wgmma_shapes.cuh"
using namespace twd;

extern "C" __global__ void __launch_bounds__(384, 1) kernel_attention(const __grid_constant__ Array<bf16, 3> ref_query, const __grid_constant__ Array<bf16, 3> ref_key, const __grid_constant__ Array<bf16, 3> ref_value, const __grid_constant__ Array<i32, 1> ref_ids, const __grid_constant__ Array<f32, 2> ref_sums, const __grid_constant__ Array<bf16, 3> ref_out, const i64 grid0, const i64 grid1, const __grid_constant__ TensorMap query_map0, const __grid_constant__ TensorMap key_map1, const __grid_constant__ TensorMap value_map2, const __grid_constant__ TensorMap out_map3) {
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = shared_address(memory);
    constexpr u32 k_query_tile0 = 0;  // 1 x 32768 bytes
    constexpr u32 k_key_tile1 = 32768;  // 2 x 32768 bytes
    constexpr u32 k_value_tile2 = 98304;  // 2 x 32768 bytes
    constexpr u32 k_out_panel3 = 163840;  // 2 x 8192 bytes of each warpgroup
    const u32 lane = threadIdx.x % 32;
    const u32 group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        for (u32 slot = 0; slot < 1; ++slot) {
            ptx::mbarrier_init(base + 196608 + 8 * slot, 1);
            ptx::mbarrier_init(base + 196616 + 8 * slot, 8);
        }
        for (u32 slot = 0; slot < 2; ++slot) {
            ptx::mbarrier_init(base + 196624 + 8 * slot, 1);
            ptx::mbarrier_init(base + 196640 + 8 * slot, 8);
        }
        for (u32 slot = 0; slot < 2; ++slot) {
            ptx::mbarrier_init(base + 196656 + 8 * slot, 1);
            ptx::mbarrier_init(base + 196672 + 8 * slot, 8);
        }
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    const u32 inner = 32u;
    const u32 others = 16u;
    const u32 programs = inner * others;
    const u32 first_row = programs - (gridDim.y - 1) * gridDim.x;
    const u32 first_program = blockIdx.y == 0 ? blockIdx.x : first_row + (blockIdx.y - 1) * gridDim.x + blockIdx.x;
    const u32 last_program = blockIdx.y == 0 ? first_row : first_program + 1;
    const int at0_ = static_cast<int>((lane % 4 * 2) + 0);
    const int at1_ = static_cast<int>((lane / 4) + ((threadIdx.x / 32) * 16));
    if (group >= 2 && group < 3) {
        ptx::registers_decrease<24>();
        if (threadIdx.x / 32 == 8 && ptx::elect_lane()) {
            Slot<1> v139{0, 1};
            Slot<2> v141{0, 1};
            Slot<2> v143{0, 1};
            for (u32 program = first_program; program < last_program; program += gridDim.x) {
                const TilePlace place = unequal_order(program, others, inner);
                u32 of_0 = inner - 1 - place.column;
                const i64 program0 = of_0;
                u32 of_1 = place.row;
                const i64 program1 = of_1;
                const i64 s150 = ops::mul(program0, 128ll);
                const i64 s154 = ops::add(s150, 255ll);
                const i64 s155 = ops::div(s154, 128ll);
                const i64 s156 = ops::min(s155, 32ll);
                ptx::mbarrier_wait(base + 196616 + 8 * v139.at, v139.parity);
                ptx::mbarrier_arrive_expect(base + 196608 + 8 * v139.at, 32768);
                TW_UNROLL for (int p = 0; p < 2; ++p) {
                    ptx::tensor_load(base + k_query_tile0 + v139.at * 32768 + p * 16384, &query_map0, base + 196608 + 8 * v139.at, coordinate(0ll) + p * 64, coordinate(s150), coordinate(program1));
                }
                TW_ROLLED for (i64 s157 = 0ll; s157 < s156; s157 = next_index(s157, s156, 1ll)) {
                    const i64 s160 = ops::mul(s157, 128ll);
                    ptx::mbarrier_wait(base + 196640 + 8 * v141.at, v141.parity);
                    ptx::mbarrier_arrive_expect(base + 196624 + 8 * v141.at, 32768);
                    TW_UNROLL for (int p = 0; p < 2; ++p) {
                        ptx::tensor_load(base + k_key_tile1 + v141.at * 32768 + p * 16384, &key_map1, base + 196624 + 8 * v141.at, coordinate(0ll) + p * 64, coordinate(s160), coordinate(program1));
                    }
                    v141.next();
                    ptx::mbarrier_wait(base + 196672 + 8 * v143.at, v143.parity);
                    ptx::mbarrier_arrive_expect(base + 196656 + 8 * v143.at, 32768);
                    TW_UNROLL for (int p = 0; p < 2; ++p) {
                        ptx::tensor_load(base + k_value_tile2 + v143.at * 32768 + p * 16384, &value_map2, base + 196656 + 8 * v143.at, coordinate(0ll) + p * 64, coordinate(s160), coordinate(program1));
                    }
                    v143.next();
                }
                v139.next();
            }
        }
        return;
    }
    if (group < 2) {
        ptx::registers_increase<240>();
        Slot<1> v207{0, 0};
        Slot<2> v209{0, 0};
        Slot<2> v211{0, 0};
        for (u32 program = first_program; program < last_program; program += gridDim.x) {
            const TilePlace place = unequal_order(program, others, inner);
            u32 of_0 = inner - 1 - place.column;
            const i64 program0 = of_0;
            u32 of_1 = place.row;
            const i64 program1 = of_1;
            const i64 s218 = ops::mul(program0, 128ll);
            const i32 s219 = ops::cast<i32>(s218);
            const i64 s222 = ops::add(s218, 255ll);
            const i64 s223 = ops::div(s222, 128ll);
            const i64 s224 = ops::min(s223, 32ll);
            ptx::mbarrier_wait(base + 196608 + 8 * v207.at, v207.parity);
            const bool sruns = 0ll < s224;
            f32 v313[2];
            f32 v314[64];
            if (sruns) {
                const i64 s329 = ops::mul(0ll, 128ll);
                f32 v330[64];
                ptx::mbarrier_wait(base + 196624 + 8 * v209.at, v209.parity);
                ptx::wgmma_fence();
                ptx::wgmma<0, 0, ptx::AlongRows<16384>, ptx::AlongRows<16384>>(Bf16{}, ptx::Steps<8>{}, v330,
                    ptx::wgmma_descriptor_swizzle128(base + k_query_tile0 + v207.at * 32768 + group * 8192, 16, 1024),
                    ptx::wgmma_descriptor_swizzle128(base + k_key_tile1 + v209.at * 32768, 16, 1024), 0);
                ptx::wgmma_commit();
                ptx::wgmma_wait<0>();
                ptx::wgmma_tie(v330);
                if (lane == 0) ptx::mbarrier_arrive(base + 196640 + 8 * v209.at);
                v209.next();
                const i32 s334 = ops::cast<i32>(s329);
                f32 v336[64];
                TW_UNROLL for (int i = 0; i < 64; ++i) v336[i] = v330[i] * 0.25f;
                const i64 s353 = ops::cast<i64>(s334);
                const i64 s356 = ops::add(s353, 0ll);
                const i64 s357 = ops::add(s353, 127ll);
                const bool s359 = s356 >= (-2147483648ll);
                const bool s361 = s357 <= 2147483647ll;
                const bool s363 = s357 < 4096ll;
                const i64 s364 = ops::cast<i64>(s334);
                const i64 s367 = ops::add(s364, 0ll);
                const i64 s368 = ops::add(s364, 127ll);
                const bool s370 = s367 >= (-2147483648ll);
                const bool s372 = s368 <= 2147483647ll;
                const i64 s373 = ops::cast<i64>(s219);
                const i64 s374 = group / 1 * 64;
                const i64 s376 = ops::add(s374, 63ll);
                const i64 s377 = ops::add(s373, s374);
                const i64 s378 = ops::add(s373, s376);
                const bool s380 = s377 >= (-2147483648ll);
                const bool s382 = s378 <= 2147483647ll;
                const bool s383 = s368 <= s377;
                const bool s384 = s363 & s383;
                const bool s385 = s384 & s359;
                const bool s386 = s385 & s361;
                const bool s387 = s386 & s370;
                const bool s388 = s387 & s372;
                const bool s389 = s388 & s380;
                const bool s390 = s389 & s382;
                f32 v391[64];
                TW_UNROLL for (int i = 0; i < 64; ++i) v391[i] = v336[i];
                if (!s390) {
                    TW_UNROLL for (int i = 0; i < 64; ++i) v391[i] = (((ops::add(s334, static_cast<i32>(at0_ + (((i % 2 + i / 4 * 2)) % 2 + ((i % 2 + i / 4 * 2)) / 2 * 8)))) < 4096) & ((ops::add(s334, static_cast<i32>(at0_ + (((i % 2 + i / 4 * 2)) % 2 + ((i % 2 + i / 4 * 2)) / 2 * 8)))) <= (ops::add(s219, static_cast<i32>(at1_ + (((i / 2 % 2)) * 8)))))) ? v336[i] : __int_as_float(0xff800000);
                }
                f32 v392[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v392[i] = __int_as_float(0xff800000);
                TW_UNROLL for (int i = 0; i < 64; ++i) v392[(i / 2 % 2)] = ops::max(v392[(i / 2 % 2)], v391[i]);
                TW_UNROLL for (int i = 0; i < 2; ++i) v392[i] = ops::max(v392[i], __shfl_xor_sync(~0u, v392[i], 1));
                TW_UNROLL for (int i = 0; i < 2; ++i) v392[i] = ops::max(v392[i], __shfl_xor_sync(~0u, v392[i], 2));
                f32 v393[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v393[i] = ops::max((-1e+30f), v392[i]);
                f32 v396[64];
                TW_UNROLL for (int i = 0; i < 64; ++i) v396[i] = v391[i] - v393[((i / 2 % 2))];
                f32 v397[64];
                TW_UNROLL for (int i = 0; i < 64; ++i) v397[i] = ops::exp2_approx(v396[i]);
                f32 v398[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v398[i] = (-1e+30f) - v393[i];
                f32 v399[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v399[i] = ops::exp2_approx(v398[i]);
                f32 v400[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v400[i] = 0.0f;
                TW_UNROLL for (int i = 0; i < 64; ++i) v400[(i / 2 % 2)] = v400[(i / 2 % 2)] + v397[i];
                f32 v401[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v401[i] = ops::fma(0.0f, v399[i], v400[i]);
                f32 v404[64];
                TW_UNROLL for (int i = 0; i < 64; ++i) v404[i] = 0.0f * v399[((i / 2 % 2))];
                u32 v405[32];
                TW_UNROLL for (int i = 0; i < 32; ++i) v405[i] = ptx::pack(Bf16{}, v397[(2 * i)], v397[(2 * i + 1)]);
                const i64 s406 = ops::add(0ll, 1ll);
                f32 v408[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v408[i] = v393[i];
                f32 v409[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v409[i] = v401[i];
                f32 v410[64];
                TW_UNROLL for (int i = 0; i < 64; ++i) v410[i] = v404[i];
                u32 v413[32];
                TW_UNROLL for (int i = 0; i < 32; ++i) v413[i] = v405[i];
                TW_ROLLED for (i64 s407 = s406; s407 < s224; s407 = next_index(s407, s224, 1ll)) {
                    const i64 s414 = ops::mul(s407, 128ll);
                    f32 v415[64];
                    ptx::mbarrier_wait(base + 196624 + 8 * v209.at, v209.parity);
                    ptx::wgmma_fence();
                    ptx::wgmma<0, 0, ptx::AlongRows<16384>, ptx::AlongRows<16384>>(Bf16{}, ptx::Steps<8>{}, v415,
                        ptx::wgmma_descriptor_swizzle128(base + k_query_tile0 + v207.at * 32768 + group * 8192, 16, 1024),
                        ptx::wgmma_descriptor_swizzle128(base + k_key_tile1 + v209.at * 32768, 16, 1024), 0);
                    ptx::wgmma_commit();
                    ptx::mbarrier_wait(base + 196656 + 8 * v211.at, v211.parity);
                    ptx::wgmma_tie(v410);
                    ptx::wgmma_tie(v413);
                    ptx::wgmma_fence();
                    ptx::wgmma<1, ptx::AlongColumns>(Bf16{}, ptx::Steps<8>{}, v410, v413,
                        ptx::wgmma_descriptor_swizzle128(base + k_value_tile2 + v211.at * 32768, 16384, 1024), 1);
                    ptx::wgmma_commit();
                    ptx::wgmma_wait<1>();
                    ptx::wgmma_tie(v415);
                    if (lane == 0) ptx::mbarrier_arrive(base + 196640 + 8 * v209.at);
                    v209.next();
                    const i32 s420 = ops::cast<i32>(s414);
                    f32 v422[64];
                    TW_UNROLL for (int i = 0; i < 64; ++i) v422[i] = v415[i] * 0.25f;
                    const i64 s439 = ops::cast<i64>(s420);
                    const i64 s442 = ops::add(s439, 0ll);
                    const i64 s443 = ops::add(s439, 127ll);
                    const bool s445 = s442 >= (-2147483648ll);
                    const bool s447 = s443 <= 2147483647ll;
                    const bool s449 = s443 < 4096ll;
                    const i64 s450 = ops::cast<i64>(s420);
                    const i64 s453 = ops::add(s450, 0ll);
                    const i64 s454 = ops::add(s450, 127ll);
                    const bool s456 = s453 >= (-2147483648ll);
                    const bool s458 = s454 <= 2147483647ll;
                    const i64 s459 = ops::cast<i64>(s219);
                    const i64 s460 = group / 1 * 64;
                    const i64 s462 = ops::add(s460, 63ll);
                    const i64 s463 = ops::add(s459, s460);
                    const i64 s464 = ops::add(s459, s462);
                    const bool s466 = s463 >= (-2147483648ll);
                    const bool s468 = s464 <= 2147483647ll;
                    const bool s469 = s454 <= s463;
                    const bool s470 = s449 & s469;
                    const bool s471 = s470 & s445;
                    const bool s472 = s471 & s447;
                    const bool s473 = s472 & s456;
                    const bool s474 = s473 & s458;
                    const bool s475 = s474 & s466;
                    const bool s476 = s475 & s468;
                    f32 v477[64];
                    TW_UNROLL for (int i = 0; i < 64; ++i) v477[i] = v422[i];
                    if (!s476) {
                        TW_UNROLL for (int i = 0; i < 64; ++i) v477[i] = (((ops::add(s420, static_cast<i32>(at0_ + (((i % 2 + i / 4 * 2)) % 2 + ((i % 2 + i / 4 * 2)) / 2 * 8)))) < 4096) & ((ops::add(s420, static_cast<i32>(at0_ + (((i % 2 + i / 4 * 2)) % 2 + ((i % 2 + i / 4 * 2)) / 2 * 8)))) <= (ops::add(s219, static_cast<i32>(at1_ + (((i / 2 % 2)) * 8)))))) ? v422[i] : __int_as_float(0xff800000);
                    }
                    f32 v478[2];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v478[i] = __int_as_float(0xff800000);
                    TW_UNROLL for (int i = 0; i < 64; ++i) v478[(i / 2 % 2)] = ops::max(v478[(i / 2 % 2)], v477[i]);
                    TW_UNROLL for (int i = 0; i < 2; ++i) v478[i] = ops::max(v478[i], __shfl_xor_sync(~0u, v478[i], 1));
                    TW_UNROLL for (int i = 0; i < 2; ++i) v478[i] = ops::max(v478[i], __shfl_xor_sync(~0u, v478[i], 2));
                    f32 v479[2];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v479[i] = ops::max(v408[i], v478[i]);
                    f32 v482[64];
                    TW_UNROLL for (int i = 0; i < 64; ++i) v482[i] = v477[i] - v479[((i / 2 % 2))];
                    f32 v483[64];
                    TW_UNROLL for (int i = 0; i < 64; ++i) v483[i] = ops::exp2_approx(v482[i]);
                    f32 v484[2];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v484[i] = v408[i] - v479[i];
                    f32 v485[2];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v485[i] = ops::exp2_approx(v484[i]);
                    f32 v486[2];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v486[i] = 0.0f;
                    TW_UNROLL for (int i = 0; i < 64; ++i) v486[(i / 2 % 2)] = v486[(i / 2 % 2)] + v483[i];
                    f32 v487[2];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v487[i] = ops::fma(v409[i], v485[i], v486[i]);
                    ptx::wgmma_wait<0>();
                    ptx::wgmma_tie(v410);
                    ptx::wgmma_tie(v413);
                    if (lane == 0) ptx::mbarrier_arrive(base + 196672 + 8 * v211.at);
                    v211.next();
                    f32 v493[64];
                    TW_UNROLL for (int i = 0; i < 64; ++i) v493[i] = v410[i] * v485[((i / 2 % 2))];
                    u32 v494[32];
                    TW_UNROLL for (int i = 0; i < 32; ++i) v494[i] = ptx::pack(Bf16{}, v483[(2 * i)], v483[(2 * i + 1)]);
                    TW_UNROLL for (int i = 0; i < 2; ++i) v408[i] = v479[i];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v409[i] = v487[i];
                    TW_UNROLL for (int i = 0; i < 64; ++i) v410[i] = v493[i];
                    TW_UNROLL for (int i = 0; i < 32; ++i) v413[i] = v494[i];
                }
                ptx::mbarrier_wait(base + 196656 + 8 * v211.at, v211.parity);
                ptx::wgmma_tie(v410);
                ptx::wgmma_tie(v413);
                ptx::wgmma_fence();
                ptx::wgmma<1, ptx::AlongColumns>(Bf16{}, ptx::Steps<8>{}, v410, v413,
                    ptx::wgmma_descriptor_swizzle128(base + k_value_tile2 + v211.at * 32768, 16384, 1024), 1);
                ptx::wgmma_commit();
                ptx::wgmma_wait<0>();
                ptx::wgmma_tie(v410);
                if (lane == 0) ptx::mbarrier_arrive(base + 196672 + 8 * v211.at);
                v211.next();
                TW_UNROLL for (int i = 0; i < 2; ++i) v313[i] = v409[i];
                TW_UNROLL for (int i = 0; i < 64; ++i) v314[i] = v410[i];
            }
            else {
                TW_UNROLL for (int i = 0; i < 2; ++i) v313[i] = 0.0f;
                TW_UNROLL for (int i = 0; i < 64; ++i) v314[i] = 0.0f;
            }
            if (lane == 0) ptx::mbarrier_arrive(base + 196616 + 8 * v207.at);
            v207.next();
            f32 v318[2];
            TW_UNROLL for (int i = 0; i < 2; ++i) v318[i] = v313[i];
            TW_UNROLL for (int i = 0; i < 2; ++i) v318[i] += __shfl_xor_sync(~0u, v318[i], 1);
            TW_UNROLL for (int i = 0; i < 2; ++i) v318[i] += __shfl_xor_sync(~0u, v318[i], 2);
            f32 v320[2];
            TW_UNROLL for (int i = 0; i < 2; ++i) v320[i] = 1.0f / v318[i];
            TW_UNROLL for (int i = 0; i < 2; i += 1) {
                const i64 at0 = program1;
                const i64 at1 = s218 + static_cast<int>((lane / 4) + ((threadIdx.x / 32) * 16)) + (i * 8);
                if ((lane & 3) == 0 && true) ref_sums.data[at0 * ref_sums.stride[0] + at1] = narrow(f32{}, v318[i]);
            }
            TW_ROLLED for (i64 spanel = 0; spanel < 2; ++spanel) {
                const i64 s507 = ops::mul(spanel, 64ll);
                f32 v509[32];
                TW_UNROLL for (int i = 0; i < 32; ++i) v509[i] = v314[i] * v320[((i / 2 % 2))];
                if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<1>();
                ptx::named_barrier_sync(1 + group, 128);
                store_panel(Bf16{}, base + k_out_panel3 + group * 16384, static_cast<u32>(spanel) % 2, v509);
                const i64 s511 = group / 1 * 64;
                const i64 s512 = ops::add(s218, s511);
                const i64 s513 = ops::add(0ll, s507);
                ptx::fence_async_shared();
                ptx::named_barrier_sync(1 + group, 128);
                if (threadIdx.x % 128 == 0)
                    ptx::tensor_store(&out_map3, base + k_out_panel3 + group * 16384 + static_cast<u32>(spanel) % 2 * 8192, coordinate(s513), coordinate(s512), coordinate(program1));
                if (threadIdx.x % 128 == 0) ptx::bulk_commit();
                TW_UNROLL for (int i = 0; i < 32; ++i) v314[i] = v314[i + 32];
            }
        }
        if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
        return;
    }
}
