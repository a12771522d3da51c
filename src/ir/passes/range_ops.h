// Ranges through the elementwise ops: interval arithmetic with the semantics of docs/ir.md.
#pragma once

#include <cstdint>

#include "ir/op.h"
#include "ir/passes/intervals.h"

namespace tilewright::ir {

/// Least and greatest value of an integer dtype or bool; u64's is capped at 2^63 - 1.
std::int64_t lowest(DType dtype);
std::int64_t highest(DType dtype);

/// Superset of both.
Range joined(DType dtype, const Range& a, const Range& b);
/// [low, high] if the type holds it, else every value: an operation that wraps.
Range fitted(DType dtype, __int128 low, __int128 high);
/// The value encoded in these bits (ConstantAttributes).
Range constant_range(DType dtype, std::uint64_t bits);

Range unary_range(Op op, DType dtype, bool approx, const Range& a);
Range binary_range(Op op, DType dtype, const Range& a, const Range& b);
/// bool: 0, 1 or both.
Range compare_range(Op op, DType dtype, const Range& a, const Range& b);
Range clamp_range(DType dtype, const Range& value, const Range& low, const Range& high);
Range fma_range(DType dtype, const Range& a, const Range& b, const Range& c);
Range cast_range(DType in, DType out, const Range& a);

}  // namespace tilewright::ir
