// Attention forward for sm_90a: out = softmax(mask(scale * Q K^T)) V and the logsumexp of each row.
// clang-format off
//
// Shapes     Q (B, H, Lq, D), K (B, Hkv, Lk, D), V (B, Hkv, Lk, Dv), out (B, H, Lq, Dv), H = n Hkv; any
//            lengths; D and Dv multiples of 8 up to 256 (columns past them load as zero)
// Mask       none; kv <= q + upper (causal); q + lower <= kv <= q + upper (window): bounds, no data;
//            or lists of key blocks with bits, segment ids, packed sequences
// Scores     any mod of (score, b, h, q, kv) and captured arrays, generated into score_mod.cuh
// Strides    of batch, head and row: any multiples of 16 bytes; the last dimension is contiguous
// Types      bf16 or f16; sums in f32, p is rounded to the inputs' type, lse is f32
// Roles      one producer thread (TMA), 1 to 3 consumer warpgroups of 64 query rows
// Few rows   a tile holds the rows of all query heads of a kv head; stream-K gives each CTA an equal range of the blocks
//            of all tiles, which splits the keys of some; a second kernel joins their results (forward_combine.cuh)
// Pipeline   K and V in kStages buffers each; Q in two, so that the next tile starts before this one ends
// Registers  24 + 2 x 240 or 32 + 3 x 160 by setmaxnreg, 255 with one warpgroup, 24 + 136 if three such CTAs share a
//            multiprocessor; no spills (checked at compile time)
// Shared     (Q buffers x rows + 2 x stages x keys) x D x 2 bytes: 176 KB for 192 x 80 at D = 128
// Schedule   persistent CTAs; static if tiles are alike, with a dynamic tile scheduler if they differ
// Measured   H200, 2026-11-21, share of the tensor peak per cycle: D = 128 full 0.96, causal 0.93; D = 64
//            0.66, 0.63; D = 256 0.95, 0.94 (docs/lab/2026-11-gpu.md)
// clang-format on
#pragma once

#include "attention/sm90/forward_consumer.cuh"
#include "attention/sm90/forward_producer.cuh"

extern "C" __global__ void __launch_bounds__(128 * (twd::attn::kWarpgroups + 1), twd::attn::kCtas)
    attention_forward(const __grid_constant__ twd::TensorMap query_map,
                      const __grid_constant__ twd::TensorMap key_map,
                      const __grid_constant__ twd::TensorMap value_map,
                      const __grid_constant__ twd::attn::ForwardParameters p,
                      const __grid_constant__ twd::attn::ModArguments mod_arguments) {
    using namespace twd;
    using namespace twd::attn;
    constexpr bool kMovesRegisters = kWarpgroups > 1 || kCtas > 1;
    extern __shared__ u8 memory[];
    const Shared shared{(shared_address(memory) + 1023) & ~1023u};
    const u32 role = enter_kernel(shared, &query_map, &key_map, &value_map);
    if (role == 0) {
        if constexpr (kMovesRegisters) ptx::registers_decrease<kProducerRegisters>();
        if (threadIdx.x / 32 == 0 && ptx::elect_lane()) {
            const u64 once = ptx::l2_evict_first();
            Producer{&query_map,
                     &key_map,
                     &value_map,
                     nullptr,
                     p,
                     shared,
                     p.keys_once ? once : ptx::l2_evict_last(),
                     once}
                .run();
        }
    } else {
        if constexpr (kMovesRegisters) ptx::registers_increase<kConsumerRegisters>();
        timed(p.profile, [&] {
            Consumer{{p, shared, role - 1, threadIdx.x % 128, {mod_arguments, p.scale}}}.run();
        });
    }
}
