// What the pipelines of all kernels here share: panels of swizzled tiles, rings of buffers.
#pragma once

#include "attention/sm90/memory_parameters.h"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/sync.cuh"
#include "cuda/device/ptx/types.cuh"

namespace twd::attn {

/// How many of `most` keys there are: of a batch, or of a packed sequence. kBytes: of a length; 0:
/// there are none.
template <int kBytes>
TW_DEVICE int keys_of(const void* lengths, int index, int most) {
    if constexpr (kBytes == 0) return most;
    const i64 length = kBytes == 8 ? __ldg(static_cast<const long long*>(lengths) + index)
                                   : __ldg(static_cast<const int*>(lengths) + index);
    return static_cast<int>(length < 0 ? 0 : length < most ? length : most);
}

/// Zeros in rows of a tile in shared memory, which lies in panels of 64 columns: by `kThreads`
/// threads, those rows of `rows` that `hidden` names. What reads them by products waits for the
/// fence and a barrier of these threads.
template <int kThreads, typename Hidden>
TW_DEVICE void clear_rows(u32 tile, int panels, u32 panel_bytes, int rows, u32 thread,
                          const Hidden& hidden) {
    for (int row = thread / 8; row < rows; row += kThreads / 8) {
        if (!hidden(row)) continue;
        const u32 target = tile + row * 128 + thread % 8 * 16;
        for (int panel = 0; panel < panels; ++panel) {
            ptx::store_shared_128(target + panel * panel_bytes, make_uint4(0, 0, 0, 0));
        }
    }
    ptx::fence_async_shared();
}

/// Position in a ring of buffers and the parity of the current pass.
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

}  // namespace twd::attn
