// Local rules of the fold pass: simpler forms of an instruction, given its constant operands.
#pragma once

#include <optional>
#include <vector>

#include "ir/function.h"

namespace tilewright::ir {

/// What is known of values while a function is walked: splat constants and definitions.
class KnownValues {
  public:
    explicit KnownValues(std::size_t num_values) : definitions_(num_values) {}

    void define(const Instruction& instruction);

    /// The instruction that defines the value, if it is pure and has no blocks; else nullptr.
    const Instruction* definition(Value value) const;
    bool is_op(Value value, Op op) const {
        const Instruction* made = definition(value);
        return made != nullptr && made->op == op;
    }
    /// Operands of the definition of a value that has one.
    const std::vector<Value>& operands(Value value) const { return definition(value)->operands; }
    /// Bits of every element, if the value is a constant.
    std::optional<std::uint64_t> constant(Value value) const;

  private:
    std::vector<std::optional<Instruction>> definitions_;
};

/// A cheaper equivalent of an instruction with one result.
struct Simplified {
    std::optional<std::uint64_t> constant;   ///< the result is this constant
    Value value;                             ///< or this value
    std::optional<Instruction> instruction;  ///< or that of this instruction (results not set)
    /// If set, the bits of the instruction's last operand, a constant that is still to be made.
    std::optional<std::uint64_t> last_operand;

    explicit operator bool() const {
        return constant.has_value() || static_cast<bool>(value) || instruction.has_value();
    }
};

/// Applies the first rule that matches; empty if none does.
Simplified simplify(const Function& function, const Instruction& instruction,
                    const KnownValues& known);

}  // namespace tilewright::ir
