// CUDA text of scalar values and elementwise ops, using the known ranges of integers.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ir/function.h"
#include "ir/passes/intervals.h"

namespace tilewright::cuda {

/// Does every integer of a range convert to f32 exactly?
inline bool exact_in_f32(const ir::Interval& range) {
    return range.inside(-(1 << 24), 1 << 24);
}

/// The C++ type that holds elements of a dtype; f16 and bf16 are held in float, rounded. UserError
/// for the 8-bit floats.
std::string scalar_type(DType dtype);

/// A literal of that type.
std::string scalar_literal(DType dtype, std::uint64_t bits);

/// The type that holds an integer: int where its range allows it, else that of its dtype.
std::string held_type(DType dtype, const ir::Interval& range);

/// An operand as text, with its known range.
struct ScalarOperand {
    std::string text;
    DType dtype = DType::f32;
    ir::Interval range;  ///< of integers
};

/// Why an elementwise op has no CUDA text for these types; empty: it has one.
std::string no_scalar_expression(const ir::Instruction& instruction, DType result_dtype,
                                 std::span<const ScalarOperand> operands);

/// Text of one elementwise op (unary, binary, comparison, ternary, convert, random_bits), over
/// cuda/device/scalar.cuh. `result`: the range of the result (ir::result_range), which is held in
/// held_type(result_dtype, result). UserError if there is none.
std::string scalar_expression(const ir::Instruction& instruction, DType result_dtype,
                              const ir::Interval& result, std::span<const ScalarOperand> operands);

}  // namespace tilewright::cuda
