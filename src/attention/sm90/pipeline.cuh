// What the pipelines of all kernels here share: panels of swizzled tiles and rings of stages.
#pragma once

#include "attention/sm90/memory_parameters.h"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/sync.cuh"
#include "cuda/device/ptx/tma.cuh"
#include "cuda/device/ptx/types.cuh"

namespace twd::attn {

/// How many of `most` keys there are in a batch or packed sequence. kBytes: size of a length; 0:
/// there are no lengths.
template <int kBytes>
TW_DEVICE int keys_of(const void* lengths, int index, int most) {
    if constexpr (kBytes == 0) return most;
    const i64 length = kBytes == 8 ? __ldg(static_cast<const long long*>(lengths) + index)
                                   : __ldg(static_cast<const int*>(lengths) + index);
    return static_cast<int>(length < 0 ? 0 : length < most ? length : most);
}

/// Clears the rows among `rows` that `hidden` selects, in a tile in shared memory that lies in
/// panels of 64 columns, with `kThreads` threads. Products that read it must wait for the fence and
/// for a barrier of these threads.
template <int kThreads, typename Hidden>
TW_DEVICE void clear_rows(u32 tile, int panels, u32 panel_bytes, int rows, u32 thread,
                          const Hidden& hidden) {
    TW_LOOP
    for (int row = thread / 8; row < rows; row += kThreads / 8) {
        if (!hidden(row)) continue;
        const u32 target = tile + row * 128 + thread % 8 * 16;
        TW_LOOP
        for (int panel = 0; panel < panels; ++panel) {
            ptx::store_shared_128(target + panel * panel_bytes, make_uint4(0, 0, 0, 0));
        }
    }
    ptx::fence_async_shared();
}

/// A position in a ring of stages, and the parity of the current pass.
template <int kCount>
struct Ring {
    u32 index = 0;
    u32 parity = 0;

    TW_DEVICE void advance() {
        if (++index == kCount) {
            index = 0;
            parity ^= 1;
        }
    }
};

/// The warpgroup's role, after barriers and descriptors are ready. The shuffle tells the compiler
/// that it is uniform, so that descriptors stay in uniform registers.
template <typename Shared, typename... Maps>
TW_DEVICE u32 enter_kernel(const Shared& shared, const Maps*... maps) {
    const u32 role = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        initialize_barriers(shared);
        (ptx::prefetch_tensor_map(maps), ...);
    }
    __syncthreads();
    return role;
}

/// Runs the consumers and, for a profile of three words per CTA, records how long that took. The
/// times wait in memory, not in registers.
template <typename Run>
TW_DEVICE void timed(u64* profiles, const Run& run) {
    if constexpr (TW_IS_COMPACT) {
        run();
        return;
    }
    u64* const profile = profiles + 3 * blockIdx.x;
    if (profiles != nullptr && threadIdx.x == 128) {
        profile[0] = ptx::clock_cycles();
        profile[1] = ptx::global_nanoseconds();
    }
    run();
    if (profiles != nullptr && threadIdx.x == 128) {
        profile[0] = ptx::clock_cycles() - profile[0];
        profile[2] = ptx::global_nanoseconds();
    }
}

}  // namespace twd::attn
