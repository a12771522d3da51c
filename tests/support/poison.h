// Memory that reveals faults of kernels: poisoned contents and guarded ends.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "ir/evaluate.h"
#include "tests/support/googletest.h"
#include "tilewright/dtype.h"

namespace tilewright::testing {

/// Fills elements with NaN (floats), 0xAA bytes (integers) or true (booleans), so that elements
/// that are never written show.
inline void poison(DType dtype, std::byte* data, std::size_t count) {
    const auto size = static_cast<std::size_t>(size_of(dtype));
    if (is_integer(dtype)) {
        std::fill_n(data, count * size, std::byte{0xaa});
        return;
    }
    const std::uint64_t element = dtype == DType::boolean ? 1 : ir::encode(dtype, NAN);
    for (std::size_t i = 0; i < count; ++i) ir::write_element(dtype, data + i * size, element);
}

/// Elements between two guards that must not be written.
class GuardedBuffer {
  public:
    /// Starts poisoned.
    GuardedBuffer(DType dtype, std::size_t count)
        : size_(count * static_cast<std::size_t>(size_of(dtype))),
          bytes_(size_ + 2 * kGuard, kGuardByte) {
        poison(dtype, data(), count);
    }

    std::byte* data() { return bytes_.data() + kGuard; }
    const std::byte* data() const { return bytes_.data() + kGuard; }
    std::size_t size_in_bytes() const { return size_; }

    bool guards_intact() const {
        const auto untouched = [](std::byte byte) { return byte == kGuardByte; };
        return std::all_of(bytes_.begin(), bytes_.begin() + kGuard, untouched) &&
               std::all_of(bytes_.end() - kGuard, bytes_.end(), untouched);
    }

  private:
    static constexpr std::ptrdiff_t kGuard = 64;
    static constexpr std::byte kGuardByte{0xc5};

    std::size_t size_;
    std::vector<std::byte> bytes_;
};

}  // namespace tilewright::testing
