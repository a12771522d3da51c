// Attention backward for sm_90a: dQ, dK and dV from dO and the forward's out and lse.
// clang-format off
//
// Launches   prepare (delta = rowsum(dO out) - dlse, lse in log2 units, sums zeroed unless they are ordered), the kernel
//            below, finish (dQ from f32 sums to rows; not if fused). Where needed: lists before them, sinks and captured
//            arrays after them. Where head_dim > 128 a separate kernel (backward_query.cuh) computes dQ instead of sums
//            and finish
// Shapes     Q, dQ (B, H, Lq, D), K, dK (B, Hkv, Lk, D), V, dV (B, Hkv, Lk, Dv), out, dO (B, H, Lq, Dv); D and Dv
//            multiples of 8 up to 256; any lengths
// Mask       none; kv <= q + upper (causal); q + lower <= kv <= q + upper (window): bounds, no data;
//            or lists of blocks of query rows with bits, segment ids, packed sequences
// Scores     any mod of (score, b, h, q, kv) and captured arrays with its derivative, generated into score_mod.cuh;
//            gradients of the arrays; dropout with the forward's random bits
// Types      bf16 or f16; sums in f32; P and dS are rounded to the inputs' type
// Work       a tile of 128 keys: all blocks of query rows that see it, for all query heads of its kv head or, where
//            there are few tiles, for a split of them, whose dK and dV another kernel adds up. Without a mask the tiles of
//            an incomplete last wave are cut into pieces with some of the blocks each, likewise added up
// Products   S^T = K Q^T, dP^T = V dO^T; dV += P^T dO and dK += dS^T Q with P^T and dS^T in registers; dQ += dS K one
//            block later, for which only dS goes through shared memory
// D > 128    a tile has 64 keys; one warpgroup computes scores and accumulates dK; P goes through shared memory to the
//            other, which accumulates dV
// Issue      per score FFMA, EX2, FADD, FMUL and two halves of a pack: 5, and 1/2 LDS and 1/4 STSM per 8
// Roles      a producer thread (TMA), a thread per warpgroup that adds dQ to its sums, two warpgroups of 64
//            keys that use the tensor cores alternately
// Registers  24 + 2 x 240 by setmaxnreg, 40 + 2 x 232 where blocks are described one by one; no spills except those
//            that backward.cpp allows (checked at compile time)
// Shared     K, V, two stages of Q and dO, two of dS, dQ in f32: 226 KB at D = 128 with blocks of 80 rows, 194 KB
//            with 64; 210 KB at D = 256
// Order      atomic adds to dQ in order of arrival, or in order of tiles (deterministic), which gives the same bits in
//            every run; where head_dim > 128 neither is needed
// Fused      ordered and causal, or without a mask: the warpgroups of the last tile that adds to a block of dQ get its
//            sums back and store its rows
// Upward     ordered and causal: tiles begin at their diagonal, from the last keys to the first, so that none waits
// Ahead      K has two buffers, and the next tile's first products are issued before dK and dV of this one are stored
// Measured   H200, 2026-11-21, share of the tensor peak per cycle: D = 128 full 0.78, causal 0.76; D = 64 causal 0.66
//            (docs/lab/2026-11-gpu.md)
// clang-format on
#pragma once

#include "attention/sm90/backward_consumer.cuh"
#include "attention/sm90/backward_over_128.cuh"
#include "attention/sm90/backward_producer.cuh"

namespace twd::attn {

TW_DEVICE void initialize_barriers(const Shared& shared) {
    ptx::mbarrier_init(shared.key_full(), 1);
    ptx::mbarrier_init(shared.value_full(), 1);
    constexpr int kWriters = kOver128 ? 0 : kWarpgroups;
    ptx::mbarrier_init(shared.tile_empty(), kConsumerWarps + kWriters);
    if constexpr (kAhead) {
        ptx::mbarrier_init(shared.key_full(1), 1);
        ptx::mbarrier_init(shared.tile_empty(1), kConsumerWarps + kWriters);
        ptx::mbarrier_init(shared.value_empty(), kConsumerWarps);
    }
    TW_LOOP
    for (int i = 0; i < 2; ++i) {
        ptx::mbarrier_init(shared.score_full(i), 4 * kStrips);
        ptx::mbarrier_init(shared.score_empty(i), 4 * kStrips);
    }
    TW_LOOP
    for (int i = 0; i < kWarpgroups; ++i) {
        ptx::mbarrier_init(shared.grad_full(i), 4);
        ptx::mbarrier_init(shared.grad_empty(i), 1);
        ptx::mbarrier_init(shared.sums_full(i), 1);
    }
    TW_LOOP
    for (int i = 0; i < kStages; ++i) {
        ptx::mbarrier_init(shared.query_full(i), 1);
        ptx::mbarrier_init(shared.query_empty(i), kOver128 && !kEvenOver128 ? 4 : kConsumerWarps);
        ptx::mbarrier_init(shared.grad_out_full(i), 1);
        ptx::mbarrier_init(shared.grad_out_empty(i), kConsumerWarps);
    }
    ptx::fence_mbarrier_init();
}

TW_DEVICE void run_consumer(const BackwardParameters& p, const Shared& shared, u32 warpgroup,
                            u32 warp, const ModArguments& mod_arguments) {
    const ScoreMod mod{mod_arguments, p.scale};
    if constexpr (!kOver128) {
        Consumer{{{p, shared, warpgroup, warp, mod}}}.run();
    } else if constexpr (kEvenOver128) {
        if (warpgroup == 0) {
            EvenKeyConsumer{{{p, shared, 0, warp, mod}}}.run();
        } else {
            EvenValueConsumer{{{p, shared, 0, warp, mod}}}.run();
        }
    } else if (warpgroup == 0) {
        KeyConsumer{{{p, shared, 0, warp, mod}}}.run();
    } else {
        ValueConsumer{{{p, shared, 0, warp, mod}}}.run();
    }
}

}  // namespace twd::attn

extern "C" __global__ void __launch_bounds__(128 * (twd::attn::kWarpgroups + 1), 1)
    attention_backward(const __grid_constant__ twd::TensorMap query_map,
                       const __grid_constant__ twd::TensorMap key_map,
                       const __grid_constant__ twd::TensorMap value_map,
                       const __grid_constant__ twd::TensorMap grad_out_map,
                       const __grid_constant__ twd::attn::BackwardParameters p,
                       const __grid_constant__ twd::attn::ModArguments mod_arguments) {
    using namespace twd;
    using namespace twd::attn;
    extern __shared__ u8 memory[];
    const Shared shared{(shared_address(memory) + 1023) & ~1023u};
    const u32 role = enter_kernel(shared, &query_map, &key_map, &value_map, &grad_out_map);
    if (role == 0) {
        ptx::registers_decrease<kProducerRegisters>();
        const u32 warp = threadIdx.x / 32;
        if (warp <= kWarpgroups && ptx::elect_lane()) {
            if (warp == 0) {
                Producer{&query_map, &key_map, &value_map,           &grad_out_map,
                         p,          shared,   ptx::l2_evict_last(), ptx::l2_evict_first()}
                    .run();
            } else if constexpr (!kOver128) {
                Writer{p, shared, warp - 1}.run();
            }
        }
    } else {
        ptx::registers_increase<kConsumerRegisters>();
        timed(p.profile, [&] {
            const u32 warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
            run_consumer(p, shared, role - 1, warp, mod_arguments);
        });
    }
}
