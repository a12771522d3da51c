// Ranges of elementwise results: interval arithmetic with the semantics of docs/reference/ir.md.
#pragma once

#include <cstdint>
#include <functional>

#include "ir/function.h"
#include "ir/op.h"
#include "ir/passes/intervals.h"

namespace tilewright::ir {

/// Smallest and largest value of an integer dtype or bool; that of u64 is capped at 2^63 - 1.
std::int64_t lowest(DType dtype);
std::int64_t highest(DType dtype);

/// A superset of both.
Interval joined(DType dtype, const Interval& a, const Interval& b);
/// [low, high] if the type holds it, else every value, because the operation wraps.
Interval fitted(DType dtype, __int128 low, __int128 high);
/// The value that these bits encode (ConstantAttributes).
Interval constant_range(DType dtype, std::uint64_t bits);

Interval unary_range(Op op, DType dtype, bool approx, const Interval& a);
Interval binary_range(Op op, DType dtype, const Interval& a, const Interval& b);
/// A range of bool: 0, 1 or both.
Interval compare_range(Op op, DType dtype, const Interval& a, const Interval& b);
Interval clamp_range(DType dtype, const Interval& value, const Interval& low, const Interval& high);
Interval fma_range(DType dtype, const Interval& a, const Interval& b, const Interval& c);
Interval cast_range(DType in, DType out, const Interval& a);

/// The result's range for any elementwise op: `of(i)` is the range of operand i, `in` the dtype of
/// the operands (for select, of if_true), `out` that of the result.
template <typename Of>
Interval elementwise_range(Op op, DType in, DType out, bool approx, Of of) {
    switch (op) {
        case Op::select:
            if (of(0).is_point()) return of(of(0).low != 0 ? 1 : 2);
            return joined(out, of(1), of(2));
        case Op::clamp:
            return clamp_range(in, of(0), of(1), of(2));
        case Op::fma:
            return fma_range(in, of(0), of(1), of(2));
        case Op::cast:
            return cast_range(in, out, of(0));
        case Op::bitcast:
            return Interval::all(out);
        default:
            break;
    }
    switch (info(op).op_class) {
        case OpClass::comparison:
            return compare_range(op, in, of(0), of(1));
        case OpClass::unary:
            return unary_range(op, in, approx, of(0));
        default:
            return binary_range(op, in, of(0), of(1));
    }
}

/// The range of an instruction's only result, a scalar or every element of a tile: `of(value)` is
/// the range of an operand. Floats and loads may have any value of their type.
Interval result_range(const Function& function, const Instruction& instruction,
                      const std::function<Interval(Value)>& of);

}  // namespace tilewright::ir
