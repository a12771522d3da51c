// Facts about a function's values: their definitions and users, divisors, signs and ranges.
#pragma once

#include <map>
#include <vector>

#include "ir/function.h"
#include "ir/passes/intervals.h"

namespace tilewright::ir {

/// broadcast, expand_dims, transpose, reshape: the elements of another value at other indices.
bool is_view(Op op);

/// What is known about the values of a function, which must outlive this and not change. Program
/// ids are bounded by what a launch allows.
class Facts {
  public:
    explicit Facts(const Function& function);

    /// The instruction that made a value; nullptr for parameters and block arguments.
    const Instruction* definition(Value value) const;
    const std::vector<const Instruction*>& users(Value value) const;
    /// The loop whose block argument a value is; nullptr for others.
    const Instruction* loop_of(Value value) const;

    /// A power of two that divides an integer scalar.
    std::int64_t divisor(Value value) const;
    /// True when an integer scalar is known to be at least 0. Unlike `range`, it assumes that sums
    /// and products of positions do not wrap, since nothing bounds the extents.
    bool non_negative(Value value) const;
    /// A superset of the values of an integer, or of every element of a tile.
    Interval range(Value value) const;
    /// Whether every element is a constant with these bits.
    bool is_constant(Value value, std::uint64_t bits) const;
    /// The constant that fills a value; nullptr for other values.
    const Instruction* constant(Value value) const;

  protected:
    const Function& function_;

  private:
    void visit(const Block& block);

    std::map<Value, const Instruction*> definitions_, loops_;
    std::map<Value, std::vector<const Instruction*>> users_;
    mutable std::map<Value, Interval> ranges_;
};

}  // namespace tilewright::ir
