// The derivative of each op: how the cotangent of its result reaches its operands.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/builder.h"

namespace tilewright::ir {

/// A cotangent that is `value` where `condition` holds (everywhere without one) and 0 elsewhere.
/// Only `value` is multiplied, so that an infinity of a branch not taken is never multiplied by 0.
struct Cotangent {
    Value value;
    Value condition;

    explicit operator bool() const { return static_cast<bool>(value); }
};

/// Dtype of the gradient of a float dtype: narrow floats widen to f32.
DType gradient_dtype(DType dtype);

/// Appends the local derivatives of pure ops to a function.
class Derivatives {
  public:
    explicit Derivatives(Builder& builder) : b_(builder) {}

    /// The cotangents of the operands, given those of the results, of which one at least is not
    /// empty; empty for operands that have none. An op without a derivative sets `refusal`.
    std::vector<Cotangent> operands(const Instruction& instruction,
                                    std::span<const Cotangent> results);

    /// The first op that has no derivative; empty: all have one.
    const std::string& refusal() const { return refusal_; }

    Cotangent add(Cotangent a, Cotangent b);
    /// The cotangent as one value, 0 where its condition does not hold.
    Value materialise(Cotangent cotangent);

  private:
    std::vector<Cotangent> one_result(const Instruction& instruction, Cotangent d);
    std::vector<Cotangent> unary(const Instruction& instruction, Cotangent d);
    std::vector<Cotangent> binary(const Instruction& instruction, Cotangent d);
    std::vector<Cotangent> select(const Instruction& instruction, Cotangent d);
    std::vector<Cotangent> clamp(const Instruction& instruction, Cotangent d);
    std::vector<Cotangent> extreme(const Instruction& instruction, Cotangent d);
    std::vector<Cotangent> reduce(const Instruction& instruction, Cotangent d);
    std::vector<Cotangent> dot(const Instruction& instruction, Cotangent d);
    std::vector<Cotangent> slice(const Instruction& instruction, Cotangent d);
    std::vector<Cotangent> concatenate(const Instruction& instruction, Cotangent d);
    std::vector<Cotangent> scan(const Instruction& instruction, Cotangent d);
    std::vector<Cotangent> associative_scan(const Instruction& instruction,
                                            std::span<const Cotangent> results);
    /// A tile between `before` and `after` zeros along an axis.
    Value padded(Value value, int axis, std::int64_t before, std::int64_t after);
    /// `count` elements from `first` on along an axis.
    Value part(Value value, int axis, std::int64_t first, std::int64_t count);

    /// A primal value in the dtype of its gradient.
    Value wide(Value primal) { return b_.cast(primal, gradient_dtype(b_.type(primal).dtype)); }
    Value like(Value value, double constant) { return b_.constant(b_.type(value), constant); }
    Value mul(Value a, Value b) { return b_.binary(Op::mul, a, b); }
    Cotangent times(Cotangent d, Value factor) { return {mul(d.value, factor), d.condition}; }
    Cotangent scaled(Cotangent d, double factor) { return times(d, like(d.value, factor)); }
    Cotangent negated(Cotangent d) { return {b_.unary(Op::neg, d.value), d.condition}; }
    /// The cotangent restricted to where `condition` also holds.
    Cotangent where(Value condition, Cotangent d);
    /// A condition or value broadcast to a shape.
    Value broadcast_condition(Value condition, const Shape& shape);

    /// No cotangents, since the op `what` has no derivative.
    std::vector<Cotangent> refuse(const Instruction& instruction, std::string_view what);

    Builder& b_;
    std::string refusal_;
};

}  // namespace tilewright::ir
