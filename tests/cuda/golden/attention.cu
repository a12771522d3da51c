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
    const int at0_ = static_cast<int>((lane % 4 * 2) + 0);
    const int at1_ = static_cast<int>((lane / 4) + ((threadIdx.x / 32) * 16));
    if (group >= 2 && group < 3) {
        ptx::registers_decrease<24>();
        if (threadIdx.x / 32 == 8 && ptx::elect_lane()) {
            Slot<1> v138{0, 1};
            Slot<2> v140{0, 1};
            Slot<2> v142{0, 1};
            for (u32 program = blockIdx.x; program < programs; program += gridDim.x) {
                u32 of_0 = inner - 1 - program % inner;
                const i64 program0 = of_0;
                u32 of_1 = program / inner;
                const i64 program1 = of_1;
                const i64 s149 = ops::mul(program0, 128ll);
                const i64 s153 = ops::add(s149, 255ll);
                const i64 s154 = ops::div(s153, 128ll);
                const i64 s155 = ops::min(s154, 32ll);
                ptx::mbarrier_wait(base + 196616 + 8 * v138.at, v138.parity);
                ptx::mbarrier_arrive_expect(base + 196608 + 8 * v138.at, 32768);
                TW_UNROLL for (int p = 0; p < 2; ++p) {
                    ptx::tensor_load(base + k_query_tile0 + v138.at * 32768 + p * 16384, &query_map0, base + 196608 + 8 * v138.at, coordinate(0ll) + p * 64, coordinate(s149), coordinate(program1));
                }
                TW_ROLLED for (i64 s156 = 0ll; s156 < s155; s156 = next_index(s156, s155, 1ll)) {
                    const i64 s159 = ops::mul(s156, 128ll);
                    ptx::mbarrier_wait(base + 196640 + 8 * v140.at, v140.parity);
                    ptx::mbarrier_arrive_expect(base + 196624 + 8 * v140.at, 32768);
                    TW_UNROLL for (int p = 0; p < 2; ++p) {
                        ptx::tensor_load(base + k_key_tile1 + v140.at * 32768 + p * 16384, &key_map1, base + 196624 + 8 * v140.at, coordinate(0ll) + p * 64, coordinate(s159), coordinate(program1));
                    }
                    v140.next();
                    ptx::mbarrier_wait(base + 196672 + 8 * v142.at, v142.parity);
                    ptx::mbarrier_arrive_expect(base + 196656 + 8 * v142.at, 32768);
                    TW_UNROLL for (int p = 0; p < 2; ++p) {
                        ptx::tensor_load(base + k_value_tile2 + v142.at * 32768 + p * 16384, &value_map2, base + 196656 + 8 * v142.at, coordinate(0ll) + p * 64, coordinate(s159), coordinate(program1));
                    }
                    v142.next();
                }
                v138.next();
            }
        }
        return;
    }
    if (group < 2) {
        ptx::registers_increase<240>();
        Slot<1> v206{0, 0};
        Slot<2> v208{0, 0};
        Slot<2> v210{0, 0};
        for (u32 program = blockIdx.x; program < programs; program += gridDim.x) {
            u32 of_0 = inner - 1 - program % inner;
            const i64 program0 = of_0;
            u32 of_1 = program / inner;
            const i64 program1 = of_1;
            const i64 s217 = ops::mul(program0, 128ll);
            const i32 s218 = ops::cast<i32>(s217);
            const i64 s221 = ops::add(s217, 255ll);
            const i64 s222 = ops::div(s221, 128ll);
            const i64 s223 = ops::min(s222, 32ll);
            ptx::mbarrier_wait(base + 196608 + 8 * v206.at, v206.parity);
            const bool sruns = 0ll < s223;
            f32 v312[2];
            f32 v313[64];
            if (sruns) {
                const i64 s327 = ops::mul(0ll, 128ll);
                f32 v328[64];
                ptx::mbarrier_wait(base + 196624 + 8 * v208.at, v208.parity);
                ptx::wgmma_fence();
                ptx::wgmma<0, 0, ptx::AlongRows<16384>, ptx::AlongRows<16384>>(Bf16{}, ptx::Steps<8>{}, v328,
                    ptx::wgmma_descriptor_swizzle128(base + k_query_tile0 + v206.at * 32768 + group * 8192, 16, 1024),
                    ptx::wgmma_descriptor_swizzle128(base + k_key_tile1 + v208.at * 32768, 16, 1024), 0);
                ptx::wgmma_commit();
                ptx::wgmma_tie(v328);
                ptx::wgmma_wait<0>();
                ptx::wgmma_tie(v328);
                if (lane == 0) ptx::mbarrier_arrive(base + 196640 + 8 * v208.at);
                v208.next();
                const i32 s332 = ops::cast<i32>(s327);
                f32 v334[64];
                TW_UNROLL for (int i = 0; i < 64; ++i) v334[i] = v328[i] * 0.25f;
                const i64 s351 = ops::cast<i64>(s332);
                const i64 s354 = ops::add(s351, 0ll);
                const i64 s355 = ops::add(s351, 127ll);
                const bool s357 = s354 >= (-2147483648ll);
                const bool s359 = s355 <= 2147483647ll;
                const bool s361 = s355 < 4096ll;
                const i64 s362 = ops::cast<i64>(s332);
                const i64 s365 = ops::add(s362, 0ll);
                const i64 s366 = ops::add(s362, 127ll);
                const bool s368 = s365 >= (-2147483648ll);
                const bool s370 = s366 <= 2147483647ll;
                const i64 s371 = ops::cast<i64>(s218);
                const i64 s372 = group / 1 * 64;
                const i64 s374 = ops::add(s372, 63ll);
                const i64 s375 = ops::add(s371, s372);
                const i64 s376 = ops::add(s371, s374);
                const bool s378 = s375 >= (-2147483648ll);
                const bool s380 = s376 <= 2147483647ll;
                const bool s381 = s366 <= s375;
                const bool s382 = s361 && s381;
                const bool s383 = s382 && s357;
                const bool s384 = s383 && s359;
                const bool s385 = s384 && s368;
                const bool s386 = s385 && s370;
                const bool s387 = s386 && s378;
                const bool s388 = s387 && s380;
                f32 v389[64];
                TW_UNROLL for (int i = 0; i < 64; ++i) v389[i] = v334[i];
                if (!s388) {
                    TW_UNROLL for (int i = 0; i < 64; ++i) v389[i] = (((ops::add(s332, static_cast<i32>(at0_ + (((i % 2 + i / 4 * 2)) % 2 + ((i % 2 + i / 4 * 2)) / 2 * 8)))) < 4096) && ((ops::add(s332, static_cast<i32>(at0_ + (((i % 2 + i / 4 * 2)) % 2 + ((i % 2 + i / 4 * 2)) / 2 * 8)))) <= (ops::add(s218, static_cast<i32>(at1_ + (((i / 2 % 2)) * 8)))))) ? v334[i] : __int_as_float(0xff800000);
                }
                f32 v390[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v390[i] = __int_as_float(0xff800000);
                TW_UNROLL for (int i = 0; i < 64; ++i) v390[(i / 2 % 2)] = ops::max(v390[(i / 2 % 2)], v389[i]);
                TW_UNROLL for (int i = 0; i < 2; ++i) v390[i] = ops::max(v390[i], __shfl_xor_sync(~0u, v390[i], 1));
                TW_UNROLL for (int i = 0; i < 2; ++i) v390[i] = ops::max(v390[i], __shfl_xor_sync(~0u, v390[i], 2));
                f32 v391[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v391[i] = ops::max((-1e+30f), v390[i]);
                f32 v394[64];
                TW_UNROLL for (int i = 0; i < 64; ++i) v394[i] = v389[i] - v391[((i / 2 % 2))];
                f32 v395[64];
                TW_UNROLL for (int i = 0; i < 64; ++i) v395[i] = ops::exp2_approx(v394[i]);
                f32 v396[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v396[i] = (-1e+30f) - v391[i];
                f32 v397[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v397[i] = ops::exp2_approx(v396[i]);
                f32 v398[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v398[i] = 0.0f;
                TW_UNROLL for (int i = 0; i < 64; ++i) v398[(i / 2 % 2)] = v398[(i / 2 % 2)] + v395[i];
                TW_UNROLL for (int i = 0; i < 2; ++i) v398[i] = v398[i] + __shfl_xor_sync(~0u, v398[i], 1);
                TW_UNROLL for (int i = 0; i < 2; ++i) v398[i] = v398[i] + __shfl_xor_sync(~0u, v398[i], 2);
                f32 v399[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v399[i] = ops::fma(0.0f, v397[i], v398[i]);
                f32 v402[64];
                TW_UNROLL for (int i = 0; i < 64; ++i) v402[i] = 0.0f * v397[((i / 2 % 2))];
                u32 v403[32];
                TW_UNROLL for (int i = 0; i < 32; ++i) v403[i] = ptx::pack(Bf16{}, v395[(2 * i)], v395[(2 * i + 1)]);
                const i64 s404 = ops::add(0ll, 1ll);
                f32 v406[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v406[i] = v391[i];
                f32 v407[2];
                TW_UNROLL for (int i = 0; i < 2; ++i) v407[i] = v399[i];
                f32 v408[64];
                TW_UNROLL for (int i = 0; i < 64; ++i) v408[i] = v402[i];
                u32 v411[32];
                TW_UNROLL for (int i = 0; i < 32; ++i) v411[i] = v403[i];
                TW_ROLLED for (i64 s405 = s404; s405 < s223; s405 = next_index(s405, s223, 1ll)) {
                    const i64 s412 = ops::mul(s405, 128ll);
                    f32 v413[64];
                    ptx::mbarrier_wait(base + 196624 + 8 * v208.at, v208.parity);
                    ptx::wgmma_fence();
                    ptx::wgmma<0, 0, ptx::AlongRows<16384>, ptx::AlongRows<16384>>(Bf16{}, ptx::Steps<8>{}, v413,
                        ptx::wgmma_descriptor_swizzle128(base + k_query_tile0 + v206.at * 32768 + group * 8192, 16, 1024),
                        ptx::wgmma_descriptor_swizzle128(base + k_key_tile1 + v208.at * 32768, 16, 1024), 0);
                    ptx::wgmma_commit();
                    ptx::wgmma_tie(v413);
                    ptx::mbarrier_wait(base + 196656 + 8 * v210.at, v210.parity);
                    ptx::wgmma_tie(v408);
                    ptx::wgmma_tie(v411);
                    ptx::wgmma_fence();
                    ptx::wgmma<1, ptx::AlongColumns>(Bf16{}, ptx::Steps<8>{}, v408, v411,
                        ptx::wgmma_descriptor_swizzle128(base + k_value_tile2 + v210.at * 32768, 16384, 1024), 1);
                    ptx::wgmma_commit();
                    ptx::wgmma_tie(v408);
                    ptx::wgmma_tie(v411);
                    ptx::wgmma_wait<1>();
                    ptx::wgmma_tie(v413);
                    if (lane == 0) ptx::mbarrier_arrive(base + 196640 + 8 * v208.at);
                    v208.next();
                    const i32 s418 = ops::cast<i32>(s412);
                    f32 v420[64];
                    TW_UNROLL for (int i = 0; i < 64; ++i) v420[i] = v413[i] * 0.25f;
                    const i64 s437 = ops::cast<i64>(s418);
                    const i64 s440 = ops::add(s437, 0ll);
                    const i64 s441 = ops::add(s437, 127ll);
                    const bool s443 = s440 >= (-2147483648ll);
                    const bool s445 = s441 <= 2147483647ll;
                    const bool s447 = s441 < 4096ll;
                    const i64 s448 = ops::cast<i64>(s418);
                    const i64 s451 = ops::add(s448, 0ll);
                    const i64 s452 = ops::add(s448, 127ll);
                    const bool s454 = s451 >= (-2147483648ll);
                    const bool s456 = s452 <= 2147483647ll;
                    const i64 s457 = ops::cast<i64>(s218);
                    const i64 s458 = group / 1 * 64;
                    const i64 s460 = ops::add(s458, 63ll);
                    const i64 s461 = ops::add(s457, s458);
                    const i64 s462 = ops::add(s457, s460);
                    const bool s464 = s461 >= (-2147483648ll);
                    const bool s466 = s462 <= 2147483647ll;
                    const bool s467 = s452 <= s461;
                    const bool s468 = s447 && s467;
                    const bool s469 = s468 && s443;
                    const bool s470 = s469 && s445;
                    const bool s471 = s470 && s454;
                    const bool s472 = s471 && s456;
                    const bool s473 = s472 && s464;
                    const bool s474 = s473 && s466;
                    f32 v475[64];
                    TW_UNROLL for (int i = 0; i < 64; ++i) v475[i] = v420[i];
                    if (!s474) {
                        TW_UNROLL for (int i = 0; i < 64; ++i) v475[i] = (((ops::add(s418, static_cast<i32>(at0_ + (((i % 2 + i / 4 * 2)) % 2 + ((i % 2 + i / 4 * 2)) / 2 * 8)))) < 4096) && ((ops::add(s418, static_cast<i32>(at0_ + (((i % 2 + i / 4 * 2)) % 2 + ((i % 2 + i / 4 * 2)) / 2 * 8)))) <= (ops::add(s218, static_cast<i32>(at1_ + (((i / 2 % 2)) * 8)))))) ? v420[i] : __int_as_float(0xff800000);
                    }
                    f32 v476[2];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v476[i] = __int_as_float(0xff800000);
                    TW_UNROLL for (int i = 0; i < 64; ++i) v476[(i / 2 % 2)] = ops::max(v476[(i / 2 % 2)], v475[i]);
                    TW_UNROLL for (int i = 0; i < 2; ++i) v476[i] = ops::max(v476[i], __shfl_xor_sync(~0u, v476[i], 1));
                    TW_UNROLL for (int i = 0; i < 2; ++i) v476[i] = ops::max(v476[i], __shfl_xor_sync(~0u, v476[i], 2));
                    f32 v477[2];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v477[i] = ops::max(v406[i], v476[i]);
                    f32 v480[64];
                    TW_UNROLL for (int i = 0; i < 64; ++i) v480[i] = v475[i] - v477[((i / 2 % 2))];
                    f32 v481[64];
                    TW_UNROLL for (int i = 0; i < 64; ++i) v481[i] = ops::exp2_approx(v480[i]);
                    f32 v482[2];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v482[i] = v406[i] - v477[i];
                    f32 v483[2];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v483[i] = ops::exp2_approx(v482[i]);
                    f32 v484[2];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v484[i] = 0.0f;
                    TW_UNROLL for (int i = 0; i < 64; ++i) v484[(i / 2 % 2)] = v484[(i / 2 % 2)] + v481[i];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v484[i] = v484[i] + __shfl_xor_sync(~0u, v484[i], 1);
                    TW_UNROLL for (int i = 0; i < 2; ++i) v484[i] = v484[i] + __shfl_xor_sync(~0u, v484[i], 2);
                    f32 v485[2];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v485[i] = ops::fma(v407[i], v483[i], v484[i]);
                    ptx::wgmma_wait<0>();
                    ptx::wgmma_tie(v408);
                    ptx::wgmma_tie(v411);
                    if (lane == 0) ptx::mbarrier_arrive(base + 196672 + 8 * v210.at);
                    v210.next();
                    f32 v491[64];
                    TW_UNROLL for (int i = 0; i < 64; ++i) v491[i] = v408[i] * v483[((i / 2 % 2))];
                    u32 v492[32];
                    TW_UNROLL for (int i = 0; i < 32; ++i) v492[i] = ptx::pack(Bf16{}, v481[(2 * i)], v481[(2 * i + 1)]);
                    TW_UNROLL for (int i = 0; i < 2; ++i) v406[i] = v477[i];
                    TW_UNROLL for (int i = 0; i < 2; ++i) v407[i] = v485[i];
                    TW_UNROLL for (int i = 0; i < 64; ++i) v408[i] = v491[i];
                    TW_UNROLL for (int i = 0; i < 32; ++i) v411[i] = v492[i];
                }
                ptx::mbarrier_wait(base + 196656 + 8 * v210.at, v210.parity);
                ptx::wgmma_tie(v408);
                ptx::wgmma_tie(v411);
                ptx::wgmma_fence();
                ptx::wgmma<1, ptx::AlongColumns>(Bf16{}, ptx::Steps<8>{}, v408, v411,
                    ptx::wgmma_descriptor_swizzle128(base + k_value_tile2 + v210.at * 32768, 16384, 1024), 1);
                ptx::wgmma_commit();
                ptx::wgmma_tie(v408);
                ptx::wgmma_tie(v411);
                ptx::wgmma_wait<0>();
                ptx::wgmma_tie(v408);
                if (lane == 0) ptx::mbarrier_arrive(base + 196672 + 8 * v210.at);
                v210.next();
                TW_UNROLL for (int i = 0; i < 2; ++i) v312[i] = v407[i];
                TW_UNROLL for (int i = 0; i < 64; ++i) v313[i] = v408[i];
            }
            else {
                TW_UNROLL for (int i = 0; i < 2; ++i) v312[i] = 0.0f;
                TW_UNROLL for (int i = 0; i < 64; ++i) v313[i] = 0.0f;
            }
            if (lane == 0) ptx::mbarrier_arrive(base + 196616 + 8 * v206.at);
            v206.next();
            f32 v318[2];
            TW_UNROLL for (int i = 0; i < 2; ++i) v318[i] = 1.0f / v312[i];
            TW_UNROLL for (int i = 0; i < 2; i += 1) {
                const i64 at0 = program1;
                const i64 at1 = s217 + static_cast<int>((lane / 4) + ((threadIdx.x / 32) * 16)) + (i * 8);
                if ((lane & 3) == 0 && true) ref_sums.data[at0 * ref_sums.stride[0] + at1] = narrow(f32{}, v312[i]);
            }
            TW_ROLLED for (i64 spanel = 0; spanel < 2; ++spanel) {
                const i64 s505 = ops::mul(spanel, 64ll);
                f32 v507[32];
                TW_UNROLL for (int i = 0; i < 32; ++i) v507[i] = v313[i] * v318[((i / 2 % 2))];
                store_panel(Bf16{}, base + k_out_panel3 + group * 16384, static_cast<u32>(spanel) % 2, v507);
                const i64 s509 = group / 1 * 64;
                const i64 s510 = ops::add(s217, s509);
                const i64 s511 = ops::add(0ll, s505);
                ptx::fence_async_shared();
                if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<0>();
                ptx::named_barrier_sync(1 + group, 128);
                if (threadIdx.x % 128 == 0)
                    ptx::tensor_store(&out_map3, base + k_out_panel3 + group * 16384 + static_cast<u32>(spanel) % 2 * 8192, coordinate(s511), coordinate(s510), coordinate(program1));
                if (threadIdx.x % 128 == 0) ptx::bulk_commit();
                TW_UNROLL for (int i = 0; i < 32; ++i) v313[i] = v313[i + 32];
            }
        }
        if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
        return;
    }
}
