// CUDA text of scalar values and elementwise ops, and what is known of integers while it is
// written.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "ir/function.h"

namespace tilewright::cuda {

/// Bounds of an integer value, inclusive.
struct Range {
    std::int64_t low = std::numeric_limits<std::int64_t>::min();
    std::int64_t high = std::numeric_limits<std::int64_t>::max();

    bool inside(std::int64_t least, std::int64_t most) const {
        return least <= low && high <= most;
    }
    /// Every value is an int of C++.
    bool narrow() const {
        return inside(std::numeric_limits<std::int32_t>::min(),
                      std::numeric_limits<std::int32_t>::max());
    }
    /// Every value, and every sum of it and one as large, converts to f32 exactly.
    bool exact_in_f32() const { return inside(-(1 << 24), 1 << 24); }
    bool operator==(const Range&) const = default;
};

/// All values of a dtype. u64 beyond 2^63 is not covered: nothing is known of u64 (see propagate).
Range range_of(DType dtype);

/// Bounds of an op's result from those of its operands (of floats: anything). Where the exact
/// result may leave the dtype the op wraps: `wraps` is set and the result is the dtype's whole
/// range.
struct Propagated {
    Range range;
    bool wraps = false;
};
Propagated propagate(const ir::Function& function, const ir::Instruction& instruction,
                     std::span<const Range> operands);

/// The C++ type that holds elements of a dtype; f16 and bf16 are held in float, rounded. UserError
/// for the 8-bit floats.
std::string scalar_type(DType dtype);

/// A literal of that type.
std::string scalar_literal(DType dtype, std::uint64_t bits);

/// The type in which an integer is held: int where its range allows it, else that of its dtype.
std::string held_type(DType dtype, const Range& range);

/// An operand as text, with what is known of it.
struct ScalarOperand {
    std::string text;
    DType dtype = DType::f32;
    Range range;  ///< of integers
};

/// Text of one elementwise op (unary, binary, comparison, ternary, convert, random_bits), over
/// cuda/device/scalar.cuh. The result is held as held_type(result dtype, result.range) says.
/// UserError naming the op when it has no CUDA text for these types.
std::string scalar_expression(const ir::Instruction& instruction, DType result_dtype,
                              const Propagated& result, std::span<const ScalarOperand> operands);

}  // namespace tilewright::cuda
