// Approximate functions of the special function unit (MUFU), 16 results per clock and
// multiprocessor, and minimum and maximum that propagate NaN.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

/// PTX ISA, ex2.approx.ftz: 2^x, relative error 2^-22.
TW_DEVICE float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// PTX ISA, lg2.approx.ftz: absolute error 2^-22 for x in [0.5, 2], else relative.
TW_DEVICE float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// PTX ISA, tanh.approx: relative error 2^-11. Half the rate of ex2.
TW_DEVICE float tanh_approx(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// PTX ISA, rcp.approx.ftz: error 1 ulp.
TW_DEVICE float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// PTX ISA, rsqrt.approx.ftz: relative error 2^-22.9.
TW_DEVICE float rsqrt_approx(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// PTX ISA, max.NaN.f32: NaN when either is.
TW_DEVICE float max_nan(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/// PTX ISA, min.NaN.f32: NaN when either is.
TW_DEVICE float min_nan(float a, float b) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/// PTX ISA, max.u32.
TW_DEVICE u32 max_unsigned(u32 a, u32 b) {
    u32 y;
    asm("max.u32 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

/// PTX ISA, sin.approx.ftz: accurate for |x| up to pi.
TW_DEVICE float sin_approx(float x) {
    float y;
    asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// PTX ISA, cos.approx.ftz: accurate for |x| up to pi.
TW_DEVICE float cos_approx(float x) {
    float y;
    asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace twd::ptx
