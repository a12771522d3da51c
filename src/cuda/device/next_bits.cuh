// Neighbours of floats, by their bits.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd {

/// The bits of the float next to one, upwards or downwards: in a format with a sign bit, zeros have
/// the same neighbours and the bits of others differ by 1.
template <typename Bits>
TW_DEVICE Bits next_bits(Bits bits, bool upwards) {
    constexpr Bits kSign = static_cast<Bits>(1u << (8 * sizeof(Bits) - 1));
    if ((bits & ~kSign) == 0) return static_cast<Bits>(upwards ? 1 : kSign | 1);
    return static_cast<Bits>(((bits & kSign) == 0) == upwards ? bits + 1 : bits - 1);
}

}  // namespace twd
