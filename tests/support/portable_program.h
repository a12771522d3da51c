// Random kernels with machine-independent results, up to stated units in the last place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/function.h"
#include "ir/launch.h"
#include "tests/support/googletest.h"

namespace tilewright::testing {

/// One array of the caller, a strided view of a buffer.
struct PortableArray {
    DType dtype = DType::f32;
    std::vector<std::int64_t> extents, strides;  ///< strides in elements
    std::int64_t elements = 0;                   ///< of the buffer, including gaps between rows
    bool is_output = false;  ///< every program writes its own part; starts with any contents
    double ulps = 0;         ///< how far two machines may differ
};

/// A kernel and its arguments. (Passes must preserve any `random_program`, but two machines can
/// only be compared on programs such as these.)
struct PortableProgram {
    ir::Function function;
    std::vector<PortableArray> arrays;  ///< in parameter order
    std::vector<std::int64_t> grid;
};

/// The program of a seed, the same on every platform. It has no races, and floats are small
/// multiples of powers of two wherever rounding, contraction or the order of a sum could matter;
/// functions with an error bound come last in their chain.
PortableProgram portable_program(std::uint64_t seed);

/// Contents for the buffers of a program: inputs by the seed, outputs poisoned.
std::vector<std::vector<std::byte>> portable_buffers(const PortableProgram& program,
                                                     std::uint64_t seed);

/// Arguments that view the buffers.
ir::Arguments arguments_of(const PortableProgram& program,
                           std::vector<std::vector<std::byte>>& buffers);

/// The first element that differs by more than its array allows; empty if there is none.
std::string difference(const PortableProgram& program,
                       const std::vector<std::vector<std::byte>>& expected,
                       const std::vector<std::vector<std::byte>>& got);

}  // namespace tilewright::testing
