// Local rules of the fold pass: what one instruction is worth, given the constants among its
// operands.
#pragma once

#include <optional>
#include <vector>

#include "ir/function.h"

namespace tilewright::ir {

/// What is known of values while a function is walked: splat constants and defining instructions.
class KnownValues {
  public:
    explicit KnownValues(std::size_t num_values) : definitions_(num_values) {}

    void define(const Instruction& instruction);

    /// The instruction that made the value, when it is pure and has no blocks; else nullptr.
    const Instruction* definition(Value value) const;
    bool is_op(Value value, Op op) const {
        const Instruction* made = definition(value);
        return made != nullptr && made->op == op;
    }
    /// Of a value that has a definition.
    const std::vector<Value>& operands(Value value) const { return definition(value)->operands; }
    /// Bits of every element, when the value is a constant.
    std::optional<std::uint64_t> constant(Value value) const;

  private:
    std::vector<std::optional<Instruction>> definitions_;
};

/// A cheaper form of an instruction with one result.
struct Simplified {
    std::optional<std::uint64_t> constant;   ///< the result is this constant
    Value value;                             ///< or this value
    std::optional<Instruction> instruction;  ///< or what this instruction gives (results not set)
    /// The instruction's last operand is a scalar or splat constant still to be made.
    std::optional<std::uint64_t> last_operand;

    explicit operator bool() const {
        return constant.has_value() || static_cast<bool>(value) || instruction.has_value();
    }
};

/// Applies the first rule that fits; empty when none does.
Simplified simplify(const Function& function, const Instruction& instruction,
                    const KnownValues& known);

}  // namespace tilewright::ir
