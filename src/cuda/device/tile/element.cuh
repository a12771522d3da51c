// Element types in memory, and the types in which registers compute with them.
//
// Narrow floats are computed with as f32 and rounded once after every operation, so that a register
// always holds a value that its element type has.
#pragma once

#include "cuda/device/ptx/convert.cuh"

namespace twd {

using i8 = signed char;
using i16 = short;
using i32 = int;
using f32 = float;
using f64 = double;

// Elements whose form in memory differs from that in registers.
struct boolean {
    u8 bits;
};
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};
struct f8e4m3 {
    u8 bits;
};
struct f8e5m2 {
    u8 bits;
};

/// The type of an element in a register.
template <class S>
struct RegisterOf {
    using Type = S;
};
template <>
struct RegisterOf<boolean> {
    using Type = bool;
};
template <>
struct RegisterOf<f16> {
    using Type = float;
};
template <>
struct RegisterOf<bf16> {
    using Type = float;
};
template <>
struct RegisterOf<f8e4m3> {
    using Type = float;
};
template <>
struct RegisterOf<f8e5m2> {
    using Type = float;
};
template <class S>
using Register = typename RegisterOf<S>::Type;

template <class S>
TW_DEVICE S widen(S value) {
    return value;
}
TW_DEVICE bool widen(boolean value) {
    return value.bits != 0;
}
TW_DEVICE float widen(f16 value) {
    return ptx::from_bits(F16{}, value.bits);
}
TW_DEVICE float widen(bf16 value) {
    return __uint_as_float(static_cast<u32>(value.bits) << 16);
}
TW_DEVICE float widen(f8e4m3 value) {
    const u32 exponent = value.bits >> 3 & 15, mantissa = value.bits & 7;
    const u32 sign = static_cast<u32>(value.bits & 0x80) << 24;
    if ((value.bits & 0x7f) == 0x7f) return __uint_as_float(0x7fffffff);
    const float subnormal = static_cast<float>(mantissa) * 0x1p-9f;
    const u32 bits =
        exponent == 0 ? __float_as_uint(subnormal) : (exponent + 120) << 23 | mantissa << 20;
    return __uint_as_float(sign | bits);
}
TW_DEVICE float widen(f8e5m2 value) {
    return ptx::from_bits(F16{}, static_cast<u16>(value.bits << 8));
}

/// The element nearest to a value, ties to even: narrow(f16{}, x).
template <class S>
TW_DEVICE S narrow(S, S value) {
    return value;
}
TW_DEVICE boolean narrow(boolean, bool value) {
    return {static_cast<u8>(value)};
}
TW_DEVICE f16 narrow(f16, float value) {
    return {ptx::to_bits(F16{}, value)};
}
TW_DEVICE bf16 narrow(bf16, float value) {
    return {ptx::to_bits(Bf16{}, value)};
}
/// Overflow and infinity give NaN. (The instruction, from sm_89, saturates instead.)
TW_DEVICE f8e4m3 narrow(f8e4m3, float value) {
    const u32 bits = __float_as_uint(value), magnitude = bits & 0x7fffffff;
    const float size = __uint_as_float(magnitude);
    const u32 sign = bits >> 24 & 0x80;
    if (!(size <= 464.0f)) return {static_cast<u8>(sign | 0x7f)};  // 464 is halfway, to even
    if (size < 0x1p-6f) return {static_cast<u8>(sign | static_cast<u32>(rintf(size * 512.0f)))};
    const u32 rounded = magnitude + 0x7ffff + (magnitude >> 20 & 1);
    return {static_cast<u8>(sign | ((rounded >> 20) - (120 << 3)))};
}
TW_DEVICE f8e5m2 narrow(f8e5m2, float value) {
    const u32 bits = __float_as_uint(value), magnitude = bits & 0x7fffffff;
    const float size = __uint_as_float(magnitude);
    const u32 sign = bits >> 24 & 0x80;
    if (size != size) return {static_cast<u8>(sign | 0x7e)};
    if (size >= 61440.0f) return {static_cast<u8>(sign | 0x7c)};
    if (size < 0x1p-14f) return {static_cast<u8>(sign | static_cast<u32>(rintf(size * 0x1p16f)))};
    const u32 rounded = magnitude + 0xfffff + (magnitude >> 21 & 1);
    return {static_cast<u8>(sign | ((rounded >> 21) - (112 << 2)))};
}

/// A register value rounded to its element type: rounded(bf16{}, x).
template <class S>
TW_DEVICE Register<S> rounded(S type, Register<S> value) {
    return widen(narrow(type, value));
}

}  // namespace twd
