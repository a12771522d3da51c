// What a call gives to a compiled kernel, whatever the device.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ir/type.h"

namespace tilewright::ir {

/// The array of one global Ref: base pointer, extents and strides in elements.
struct RefArgument {
    void* data = nullptr;
    std::array<std::int64_t, kMaxRefRank> extents{};
    std::array<std::int64_t, kMaxRefRank> strides{};
};

/// Arguments in parameter order: a kernel's global Refs (scratch Refs get no argument) and scalars.
struct Arguments {
    std::vector<RefArgument> refs;  ///< one per global Ref parameter
    std::vector<std::uint64_t>
        scalars;                     ///< one per scalar parameter, bits as in ConstantAttributes
    std::vector<std::int64_t> grid;  ///< one per grid axis, last fastest; empty: one program
};

}  // namespace tilewright::ir
