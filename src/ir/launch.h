// What a call passes to a compiled kernel, on any device.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ir/type.h"

namespace tilewright::ir {

/// The array of a global Ref: base pointer, extents and strides in elements.
struct RefArgument {
    void* data = nullptr;
    std::array<std::int64_t, kMaxRefRank> extents{};
    std::array<std::int64_t, kMaxRefRank> strides{};
};

/// Arguments in parameter order: of a kernel's global Refs (scratch Refs have none) and scalars.
struct Arguments {
    std::vector<RefArgument> refs;  ///< one per global Ref parameter
    std::vector<std::uint64_t>
        scalars;                     ///< one per scalar parameter, bits as in ConstantAttributes
    std::vector<std::int64_t> grid;  ///< one per grid axis, last fastest; empty: one program
};

}  // namespace tilewright::ir
