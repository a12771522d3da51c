// Ranges through the elementwise ops: interval arithmetic with the semantics of
// docs/reference/ir.md.
#pragma once

#include <cstdint>
#include <functional>

#include "ir/function.h"
#include "ir/op.h"
#include "ir/passes/intervals.h"

namespace tilewright::ir {

/// Least and greatest value of an integer dtype or bool; u64's is capped at 2^63 - 1.
std::int64_t lowest(DType dtype);
std::int64_t highest(DType dtype);

/// Superset of both.
Interval joined(DType dtype, const Interval& a, const Interval& b);
/// [low, high] if the type holds it, else every value: an operation that wraps.
Interval fitted(DType dtype, __int128 low, __int128 high);
/// The value encoded in these bits (ConstantAttributes).
Interval constant_range(DType dtype, std::uint64_t bits);

Interval unary_range(Op op, DType dtype, bool approx, const Interval& a);
Interval binary_range(Op op, DType dtype, const Interval& a, const Interval& b);
/// bool: 0, 1 or both.
Interval compare_range(Op op, DType dtype, const Interval& a, const Interval& b);
Interval clamp_range(DType dtype, const Interval& value, const Interval& low, const Interval& high);
Interval fma_range(DType dtype, const Interval& a, const Interval& b, const Interval& c);
Interval cast_range(DType in, DType out, const Interval& a);

/// Of any elementwise op: `of(i)` is the range of operand i, `in` the operands' dtype (select: of
/// if_true), `out` the result's.
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

/// Of the one result of an instruction, a scalar or every element of a tile: `of(value)` is the
/// range of an operand. Floats, and what memory holds, may be anything of their type.
Interval result_range(const Function& function, const Instruction& instruction,
                      const std::function<Interval(Value)>& of);

}  // namespace tilewright::ir
