// Tensors in device memory as forward and backward take them, check them and describe them to TMA.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/runtime/compiler.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/tensor_map.h"
#include "support/check.h"
#include "support/integer.h"
#include "tilewright/dtype.h"

namespace tilewright::attn::sm90 {

/// A strided array in device memory, indexed (batch, head, row, column) whatever its layout.
struct DeviceTensor {
    cuda::DeviceAddress address = 0;
    std::array<std::int64_t, 4> shape{};
    std::array<std::int64_t, 4> strides{};  ///< elements
};

inline constexpr const char* kOperation = "attention (sm90)";  ///< the engine's name in messages
inline constexpr std::int64_t kPanel = 64;  ///< columns of a panel with the 128-byte swizzle

/// Number of instructions for a product over this many columns, 16 for each.
constexpr int steps_of(int columns) {
    return (columns + 15) / 16;
}

/// What messages say when a rule is broken.
template <typename Value>
std::string rule_text(const char* argument, const char* rule, const Value& value) {
    return fmt::format("{}: expected {} but got {}", argument, rule, value);
}

/// Throws UserError naming the argument, the rule and the value unless the rule holds.
template <typename Value>
void require(bool holds, const char* argument, const char* rule, const Value& value) {
    if (!holds) user_error(kOperation, "{}", rule_text(argument, rule, value));
}

/// Throws UserError unless the tensor has this shape and a layout that TMA can read.
void check_tensor(const DeviceTensor& tensor, const char* argument,
                  const std::array<std::int64_t, 4>& shape);

/// The TMA descriptor of tiles of `rows` rows and one panel of columns, with the 128-byte swizzle.
/// `read_once`: the kernel as a whole reads every element only once.
cuda::TensorMap tile_map(const DeviceTensor& tensor, DType dtype, std::int64_t rows,
                         const char* argument, bool read_once = false);

/// The same for tiles that hold the rows of `group` adjacent heads: row n of a tile is query n /
/// group of head n % group. `group` divides `rows` and the number of heads.
cuda::TensorMap grouped_tile_map(const DeviceTensor& tensor, DType dtype, std::int64_t rows,
                                 std::int64_t group, const char* argument);

/// The device code of this folder; generated from its .cuh files.
const std::vector<cuda::Header>& device_headers();

}  // namespace tilewright::attn::sm90
