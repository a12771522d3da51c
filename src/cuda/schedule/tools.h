// Questions about a program that several passes ask.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Definitions and uses, as they are when it is made. Pointers hold until instructions move.
class Uses {
  public:
    explicit Uses(const Program& program);
    /// nullptr for parameters and arguments of blocks.
    const Instruction* definition(Value value) const;
    const std::vector<const Instruction*>& users(Value value) const;
    std::size_t count(Value value) const { return users(value).size(); }

  private:
    std::map<Value, const Instruction*> definitions_;
    std::map<Value, std::vector<const Instruction*>> users_;
};

/// The value of a scalar that is a constant.
std::optional<std::int64_t> constant_of(const Program& program, Value value);

}  // namespace tilewright::cuda::schedule
