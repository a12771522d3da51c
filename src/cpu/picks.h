// Sums that pick one element: sum(where(iota == at, x, 0)).
#pragma once

#include <optional>
#include <vector>

#include "ir/function.h"
#include "ir/passes/definitions.h"

namespace tilewright::cpu {

/// The result of a sum is what `value` has at the index `at` of `axis`, and 0 if that is outside.
struct PickForm {
    ir::Value value, at;
    int axis = 0;
    std::vector<int> kept;  ///< the axis of `value` for each axis of the sum
};

/// How a sum over an axis of a select picks one element: all others are zeros, so that no sum is
/// needed, in whatever order. nullopt for other reductions. A zero is positive in the sum.
std::optional<PickForm> pick_form(const ir::Function& function, const ir::Definitions& definitions,
                                  const ir::Instruction& reduce);

}  // namespace tilewright::cpu
