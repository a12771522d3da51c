// Scalar semantics of every elementwise op: the one definition that constant folding and the
// reference interpreter share. docs/reference/ir.md is its specification.
#pragma once

#include <cstdint>

#include "ir/op.h"

namespace tilewright::ir {

// An element is passed as 64 bits, as in ConstantAttributes: integers sign- or zero-extended, bool
// 0 or 1, every float dtype as the bits of the f64 with the same value.

/// Bits of `value` rounded to `dtype`. UserError when an integer dtype cannot hold it exactly.
std::uint64_t encode(DType dtype, double value);
/// The same from an integer. Float dtypes round once; a negative u64 is its two's complement.
std::uint64_t encode_int(DType dtype, std::int64_t value);
/// Numeric value of an element (i64 and u64 beyond 2^53 are rounded).
double decode(DType dtype, std::uint64_t bits);

/// `value` rounded to nearest even in a float dtype; overflow gives infinity, or NaN in f8e4m3.
double round_to(DType dtype, double value);
/// Any 64 bits as an element of an integer dtype: wrapped to its width and extended.
std::uint64_t wrap_to(DType dtype, std::uint64_t bits);

/// Converts an element in memory (size_of(dtype) bytes, any alignment) to and from its 64 bits.
std::uint64_t read_element(DType dtype, const void* memory);
void write_element(DType dtype, void* memory, std::uint64_t bits);

/// Result of an elementwise op (unary, binary, comparison, ternary, convert) on one element. `in`
/// is the dtype of the operands (for select, of if_true), `out` that of the result.
std::uint64_t evaluate(Op op, DType in, DType out, const std::uint64_t* operands);

/// One step of a reduction or scan other than argmax and argmin: `a` before `b`, both of `dtype`.
/// Sums and products of f16, bf16 and f8 accumulate in f32: pass `dtype` f32 and round at the end.
std::uint64_t combine(Reduction kind, DType dtype, std::uint64_t a, std::uint64_t b);
/// The value that leaves every other unchanged under `combine`.
std::uint64_t identity(Reduction kind, DType dtype);
/// Dtype in which a reduction of `dtype` is accumulated before it is rounded to the result.
DType accumulator(Reduction kind, DType dtype);
/// Whether `b`, at a higher index, replaces `a` as the extreme in argmax or argmin.
bool replaces_extreme(Reduction kind, DType dtype, std::uint64_t a, std::uint64_t b);
/// True when `a` comes before `b` in ascending order; a NaN comes after every number, and zeros of
/// both signs are equal.
bool comes_before(DType dtype, std::uint64_t a, std::uint64_t b);

/// First word of philox4x32-10 with this key and counter words (low, high, 0, 0).
std::uint32_t philox(std::uint64_t key, std::uint64_t counter);

}  // namespace tilewright::ir
