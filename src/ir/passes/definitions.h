// Where the values of a function come from and who reads them, before a pass rewrites it.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "ir/function.h"

namespace tilewright::ir {

/// Copies of a function's instructions, so that a pass may move and change them.
class Definitions {
  public:
    explicit Definitions(const Function& function);

    /// Of the single result of an instruction without blocks; nullptr for other values.
    const Instruction* of(Value value) const;
    const std::vector<Instruction>& readers(Value value) const;
    /// The element of a constant.
    std::optional<double> constant(Value value) const;

  private:
    const Function& function_;
    std::map<Value, Instruction> definitions_;
    std::map<Value, std::vector<Instruction>> readers_;
};

/// Appends a constant of all elements of a type.
Value append_constant(Function& function, std::vector<Instruction>& to, const Type& type,
                      double value);

}  // namespace tilewright::ir
