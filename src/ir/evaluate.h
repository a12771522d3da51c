// Scalar semantics of every elementwise op: the one definition that constant folding and the
// reference interpreter share. docs/reference/ir.md is its specification.
#pragma once

#include <cstdint>

#include "ir/op.h"

namespace tilewright::ir {

// An element travels as 64 bits, as in ConstantAttributes: integers sign- or zero-extended, bool 0
// or 1, every float dtype as the bits of the f64 with the same value.

/// Bits of `value` rounded to `dtype`. UserError when an integer dtype cannot hold it exactly.
std::uint64_t encode(DType dtype, double value);
/// The same from an integer. Float dtypes round once; u64 takes the two's complement of a negative.
std::uint64_t encode_int(DType dtype, std::int64_t value);
/// Numeric value of an element (i64 and u64 beyond 2^53 are rounded).
double decode(DType dtype, std::uint64_t bits);

/// `value` rounded to nearest even in a float dtype: overflow gives infinity, in f8e4m3 NaN.
double round_to(DType dtype, double value);
/// Any 64 bits brought into the form of an integer dtype: wrapped to its width and extended.
std::uint64_t wrap_to(DType dtype, std::uint64_t bits);

/// An element in memory (size_of(dtype) bytes, any alignment) to and from its 64 bits.
std::uint64_t read_element(DType dtype, const void* memory);
void write_element(DType dtype, void* memory, std::uint64_t bits);

/// Result of an elementwise op (unary, binary, comparison, ternary, convert) on one element.
/// `in` is the operands' dtype (select: of if_true), `out` the result's.
std::uint64_t evaluate(Op op, DType in, DType out, const std::uint64_t* operands);

/// One step of a reduction or scan: `a` then `b`, both of `dtype`. Not argmax, argmin.
/// Sums and products of f16, bf16 and f8 are carried in f32: pass `dtype` f32 and round at the end.
std::uint64_t combine(Reduction kind, DType dtype, std::uint64_t a, std::uint64_t b);
/// The value that leaves every other unchanged under `combine`.
std::uint64_t identity(Reduction kind, DType dtype);
/// Dtype that carries a reduction of `dtype` until it is rounded to the result.
DType accumulator(Reduction kind, DType dtype);
/// True when `b` at a higher index replaces `a` as the extreme of argmax or argmin.
bool replaces_extreme(Reduction kind, DType dtype, std::uint64_t a, std::uint64_t b);
/// True when `a` comes before `b` in ascending order; a NaN comes after every number, and zeros of
/// both signs are equal.
bool comes_before(DType dtype, std::uint64_t a, std::uint64_t b);

/// First word of philox4x32-10 with this key and counter words (low, high, 0, 0).
std::uint32_t philox(std::uint64_t key, std::uint64_t counter);

}  // namespace tilewright::ir
