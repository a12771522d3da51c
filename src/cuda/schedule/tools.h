// Questions about a program that several passes ask.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Definitions and uses at the time of construction. Pointers hold until instructions move.
class Uses {
  public:
    explicit Uses(const Program& program);
    /// nullptr for parameters and block arguments.
    const Instruction* definition(Value value) const;
    const std::vector<const Instruction*>& users(Value value) const;
    std::size_t count(Value value) const { return users(value).size(); }

  private:
    std::map<Value, const Instruction*> definitions_;
    std::map<Value, std::vector<const Instruction*>> users_;
};

/// Limits of wgmma (PTX ISA, wgmma.mma_async).
inline constexpr std::int64_t kRows = 64;    ///< of a product of one warpgroup
inline constexpr std::int64_t kMostN = 256;  ///< columns of an instruction
/// For 16-bit operands.
inline constexpr std::int64_t kPanel = 64;  ///< elements in the span of the swizzle
inline constexpr std::int64_t kStep = 16;   ///< of the inner dimension

/// Slots of a ring where `room` of them fit and `most` are useful: fewer where the caller asks for
/// fewer stages, but at least two. Refused where it asks for more stages than any ring has.
std::int64_t slots_of_ring(const Program& program, std::int64_t room, std::int64_t most);

/// The value of a scalar that is a constant.
std::optional<std::int64_t> constant_of(const Program& program, Value value);

}  // namespace tilewright::cuda::schedule
