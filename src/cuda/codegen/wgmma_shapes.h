// Generates the wgmma overloads that a kernel needs.
#pragma once

#include <compare>
#include <span>
#include <string>

#include "tilewright/dtype.h"

namespace tilewright::cuda {

/// One product of a warpgroup: 64 x n x steps of 32 bytes of the inner dimension. Operands of bf16,
/// f16, f32 (as tf32), f8e4m3 and f8e5m2 have an f32 accumulator, those of i8 and u8 an i32 one.
struct WgmmaShape {
    int n = 0;  ///< a multiple of 8 from 8 to 256
    DType dtype = DType::bf16;
    bool a_in_registers = false;
    int steps = 1;                  ///< instructions, 32 bytes along the inner dimension each
    bool accumulate_given = false;  ///< whether to add is an argument, not kAccumulate
    /// 2: 128 rows, whose left operands, in shared memory, are two descriptors. In each panel of
    /// 64 columns, the sums of the second 64 rows follow those of the first.
    int halves = 1;
    auto operator<=>(const WgmmaShape&) const = default;
};

/// The tag of an element type (ptx/types.cuh).
const char* wgmma_tag(DType dtype);

/// Text of a device header with one function per shape, selected by the steps and the size of its
/// accumulator array:
///   twd::ptx::wgmma<kAccumulate, kTransposeB, kTransposeA, StrideA, StrideB>(
///       Bf16{}, Steps<4>{}, d, a, b)
///   twd::ptx::wgmma<kAccumulate, kTransposeB, StrideB>(Bf16{}, Steps<4>{}, d, registers, b)
/// and, where whether to add is an argument,
///   twd::ptx::wgmma<kTransposeB, kTransposeA, StrideA, StrideB>(Bf16{}, Steps<4>{}, d, a, b, add)
/// a is a descriptor or four registers a step, b a descriptor: K-major, or MN-major when
/// transposed, which only 16-bit operands can be. A stride (ptx/wgmma.cuh) says where the steps of
/// a descriptor begin.
///
/// All steps are one asm statement: as statements of their own, with all accumulators as operands
/// of each, they took half of a kernel's compile time.
///
/// `with_compact`: with other functions where TW_COMPACT is defined (device/compact.cuh), whose
/// arrays must be aligned to 16 bytes and lie in memory of the thread. 16-bit operands only.
std::string wgmma_shapes_header(std::span<const WgmmaShape> shapes, bool with_compact = false);

}  // namespace tilewright::cuda
