// TMA descriptors: the tensor and the box that TMA copies.
#pragma once

#include <array>
#include <cstdint>

#include "cuda/runtime/driver.h"
#include "tilewright/dtype.h"

namespace tilewright::cuda {

/// The shared-memory swizzle, whose span bounds the bytes of a box's innermost extent.
enum class Swizzle { none = 0, bytes32 = 1, bytes64 = 2, bytes128 = 3 };

/// A strided tensor and the box that one copy moves. Index 0 is the innermost dimension.
struct TensorMapRequest {
    static constexpr int kMaxRank = 5;
    DType dtype = DType::bf16;
    bool tf32 = false;  ///< f32 elements are rounded to tf32, for products
    int rank = 0;
    DeviceAddress address = 0;                      ///< aligned to 16 bytes
    std::array<std::uint64_t, kMaxRank> extents{};  ///< elements
    std::array<std::uint64_t, kMaxRank> strides{};  ///< bytes, multiples of 16; [0] is not read
    std::array<std::uint32_t, kMaxRank> box{};      ///< elements, at most 256 each
    Swizzle swizzle = Swizzle::none;
    /// Data that is read once, at the speed of memory: L2 fetches 128 bytes of it at a time, not
    /// 256.
    bool read_once = false;
};

/// Encodes on the host. Elements outside the tensor read as zero and are not written. Throws
/// UserError naming the rule of TMA that the request breaks.
TensorMap encode_tensor_map(const TensorMapRequest& request, const char* argument);

}  // namespace tilewright::cuda
