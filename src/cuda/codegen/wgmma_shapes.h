// Generates the wgmma overloads a kernel needs.
#pragma once

#include <span>
#include <string>

#include "tilewright/dtype.h"

namespace tilewright::cuda {

/// One wgmma shape: 64 x n x 16, 16-bit operands, f32 accumulator.
struct WgmmaShape {
    int n = 0;  ///< a multiple of 8 from 8 to 256
    DType dtype = DType::bf16;
    bool a_in_registers = false;
};

/// Text of a device header with one function per shape, chosen by the size of its accumulator
/// array:
///   tw::ptx::wgmma<kAccumulate, kTransposeB, kTransposeA>(Bf16{}, d, a, b)
/// a is a descriptor or four registers, b a descriptor: K-major, or MN-major when transposed.
/// kTransposeA is 0 unless given, and only there for an a in shared memory.
/// Written out for all 64 values of n it would cost every compilation 9,000 lines.
std::string wgmma_shapes_header(std::span<const WgmmaShape> shapes);

}  // namespace tilewright::cuda
