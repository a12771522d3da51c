// Masks to and from one bool per pair.
#pragma once

#include "mask/mask_data.h"
#include "tilewright/tensor.h"

namespace tilewright::mask {

/// The canonical form of a bool tensor (B, H, Q, KV) with any strides.
MaskData from_dense(const Tensor& dense);
/// bool (batch, heads, q_len, kv_len); batch and heads that the mask does not store are repeated.
Tensor to_dense(const MaskData& data, std::int64_t batch, std::int64_t heads);

}  // namespace tilewright::mask
