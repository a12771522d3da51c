// Lazy replacement of values: passes note replacements and apply them as they walk on.
#pragma once

#include <map>

#include "ir/function.h"

namespace tilewright::ir {

/// Old value -> new value. Chains are followed, so replacing a by b and later b by c gives c for a.
class Replacements {
  public:
    void add(Value from, Value to) { map_[from] = to; }
    bool empty() const { return map_.empty(); }

    Value operator()(Value value) const {
        for (auto found = map_.find(value); found != map_.end(); found = map_.find(value)) {
            value = found->second;
        }
        return value;
    }

    /// Rewrites the operands of an instruction, but not in its blocks.
    void apply(Instruction& instruction) const {
        for (Value& operand : instruction.operands) operand = (*this)(operand);
    }

    /// Rewrites every operand in a block and the blocks nested in it.
    void apply(Block& block) const {
        if (empty()) return;
        walk(block, [&](Instruction& instruction) { apply(instruction); });
    }

  private:
    std::map<Value, Value> map_;
};

}  // namespace tilewright::ir
