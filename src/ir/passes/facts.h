// Facts about a function's values that clients ask for: who makes and uses them, divisors, signs,
// ranges.
#pragma once

#include <map>
#include <vector>

#include "ir/function.h"
#include "ir/passes/intervals.h"

namespace tilewright::ir {

/// broadcast, expand_dims, transpose, reshape: elements of another value under other names.
bool is_view(Op op);

/// What is known of the values of a function, which must outlive this and stay as it is. Launches
/// bound the program ids.
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
    /// True when an integer scalar is known to be at least 0. Unlike `range` it takes sums and
    /// products of positions not to wrap, since nothing bounds the extents that they are made of.
    bool non_negative(Value value) const;
    /// Superset of an integer's values, of every element of a tile.
    Interval range(Value value) const;
    /// Is it a constant of this value in every element?
    bool is_constant(Value value, std::uint64_t bits) const;
    /// The constant that every element of a value is; nullptr for others.
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
