// The 64-bit words that hold elements: the bits of an f64 for every float, integers extended.
#pragma once

#include <bit>
#include <cstdint>

#include "tilewright/dtype.h"

namespace tilewright::ir {

inline std::uint64_t from_double(double value) {
    return std::bit_cast<std::uint64_t>(value);
}
inline double to_double(std::uint64_t bits) {
    return std::bit_cast<double>(bits);
}

/// Width of an element in bits.
inline int width(DType dtype) {
    return 8 * size_of(dtype);
}

}  // namespace tilewright::ir
