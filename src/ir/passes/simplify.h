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
    explicit KnownValues(std::size_t num_values) : entries_(num_values) {}

    void define(const Instruction& instruction);

    /// Bits of every element, when the value is a constant.
    std::optional<std::uint64_t> constant(Value value) const;
    /// Op that defines the value, when it is pure and has no blocks; else nullopt.
    std::optional<Op> op(Value value) const;
    /// Operands of that op.
    const std::vector<Value>& operands(Value value) const { return entry(value).operands; }
    const Attributes& attributes(Value value) const { return entry(value).attributes; }

  private:
    struct Entry {
        std::optional<Op> op;
        std::vector<Value> operands;
        Attributes attributes;
    };
    const Entry& entry(Value value) const;

    std::vector<Entry> entries_;
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
