// Which rows have a gradient.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::attn {

/// False for rows without a key (-inf), and where f32 has no digits after the point, so that P
/// would be off by an arbitrary factor. Rows of +inf or NaN turn their gradients into NaN.
TW_DEVICE bool has_gradient(float lse) {
    const float kInfinity = __builtin_bit_cast(float, 0x7f800000u);
    return !(fabsf(lse) >= 0x1p24f && lse < kInfinity);
}

}  // namespace twd::attn
