// Cotangents of the values of straight-line code, from the last instruction to the first.
#pragma once

#include <map>
#include <set>
#include <string>

#include "ir/passes/derivatives.h"

namespace tilewright::ir {

/// Appends the derivative of instructions to the block that a builder fills. First `mark` them in
/// their order, then give the cotangents of their results, then go `backward` through them.
class ReverseSweep {
  public:
    explicit ReverseSweep(Builder& builder) : builder_(builder), derivatives_(builder) {}

    /// What to differentiate by.
    void activate(Value value) { active_.insert(value); }
    bool is_active(Value value) const { return active_.contains(value); }
    /// Whether an instruction, or one in its blocks, reads an active value.
    bool reads_active(const Instruction& instruction) const;
    /// Activates the float results of an instruction that reads active values.
    void mark(const Instruction& instruction);

    /// Adds to the cotangent of a value. Those that are not active are ignored.
    void accumulate(Value value, Cotangent cotangent);
    /// The sum so far; empty if there is none.
    Cotangent cotangent(Value value) const;
    /// Passes the cotangents of the results on to the operands. `refusal` names an op without a
    /// derivative.
    void backward(const Instruction& instruction);

    Derivatives& derivatives() { return derivatives_; }
    /// The first op that has no derivative; empty: all have one.
    const std::string& refusal() const { return derivatives_.refusal(); }

  private:
    Builder& builder_;
    Derivatives derivatives_;
    std::set<Value> active_;
    std::map<Value, Cotangent> cotangents_;
};

}  // namespace tilewright::ir
