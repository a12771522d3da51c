// Emulated conversions.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace tw::ptx {

inline void keep_bits(uint4&) {}
inline u16 to_bits(Bf16, float value) {
    const u32 bits = __float_as_uint(value);
    if (value != value) return 0x7fff;
    return static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline u16 to_bits(F16, float value) {
    return bits_as<u16>(static_cast<_Float16>(value));
}
inline float from_bits(F16, u16 bits) {
    return static_cast<float>(bits_as<_Float16>(bits));
}
template <class Tag>
inline u32 pack(Tag tag, float low, float high) {
    return to_bits(tag, low) | static_cast<u32>(to_bits(tag, high)) << 16;
}
inline u32 to_tf32(float value) {
    return (__float_as_uint(value) + 0x1000) & 0xffffe000u;
}

}  // namespace tw::ptx
