// cvt: f32 to and from 16-bit, tf32 and 8-bit floats; and two tools against compiler hoisting.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

/// No instruction: values computed from these words are computed anew after it, so that they need
/// not stay in registers.
TW_DEVICE void keep_bits(uint4& words) {
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
}

/// PTX ISA, %lanemask_lt: 0, which the compiler takes to differ between lanes. It puts a load from
/// an address that is equal in all lanes into a uniform register, for which the warp waits at once.
TW_DEVICE u32 lane_zero() {
    u32 lanes;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lanes));
    return lanes >> 31;
}

/// PTX ISA, cvt.rn.bf16x2.f32: two elements in one u32, `low` in the lower half.
TW_DEVICE u32 pack(Bf16, float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/// PTX ISA, cvt.rn.f16x2.f32.
TW_DEVICE u32 pack(F16, float low, float high) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/// The lower and the upper bf16 of a word: the bits of an f32 are those of a bf16 and 16 zeros.
TW_DEVICE float low(Bf16, u32 packed) {
    return __uint_as_float(packed << 16);
}
TW_DEVICE float high(Bf16, u32 packed) {
    return __uint_as_float(packed & 0xffff0000u);
}

/// PTX ISA, cvt.f32.f16 of the lower half.
TW_DEVICE float low(F16, u32 packed) {
    float value;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, l;\n}"
        : "=f"(value)
        : "r"(packed));
    return value;
}

/// PTX ISA, cvt.f32.f16 of the upper half.
TW_DEVICE float high(F16, u32 packed) {
    float value;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, h;\n}"
        : "=f"(value)
        : "r"(packed));
    return value;
}

/// PTX ISA, cvt.rn.bf16.f32: the bits of one element.
TW_DEVICE u16 to_bits(Bf16, float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

/// PTX ISA, cvt.rn.f16.f32.
TW_DEVICE u16 to_bits(F16, float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

/// PTX ISA, cvt.f32.f16 of 16 bits.
TW_DEVICE float from_bits(F16, u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

/// PTX ISA, cvt.rna.tf32.f32: nearest, ties away; the result is an f32 with 13 zero bits.
TW_DEVICE u32 to_tf32(float value) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

/// PTX ISA, cvt.rn.satfinite.e4m3x2.f32 (sm_89): `low` in the lower byte.
TW_DEVICE u16 pack_e4m3(float low, float high) {
    u16 packed;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
}

/// PTX ISA, cvt.rn.satfinite.e5m2x2.f32 (sm_89).
TW_DEVICE u16 pack_e5m2(float low, float high) {
    u16 packed;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
}

}  // namespace twd::ptx
