// What the pipelines of all kernels here share: panels of swizzled tiles, rings of buffers.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace tw::attn {

constexpr int kPanel = 64;  ///< columns of 16 bits in a row of the 128-byte swizzle

constexpr int panels(int dim) {
    return (dim + kPanel - 1) / kPanel;
}

/// Position in a ring of buffers and the parity of its current round.
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

}  // namespace tw::attn
