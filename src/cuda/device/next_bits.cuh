// Neighbours of floats, from their bits.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd {

/// The bits of the next float upwards or downwards, in a format with a sign bit: the bits of
/// neighbours differ by 1, except at the zeros, which have the same neighbours.
template <typename Bits>
TW_DEVICE Bits next_bits(Bits bits, bool upwards) {
    constexpr Bits kSign = static_cast<Bits>(1u << (8 * sizeof(Bits) - 1));
    if ((bits & ~kSign) == 0) return static_cast<Bits>(upwards ? 1 : kSign | 1);
    return static_cast<Bits>(((bits & kSign) == 0) == upwards ? bits + 1 : bits - 1);
}

}  // namespace twd
