// Constant folding and exact algebraic identities.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct FoldReport {
    int constants = 0;   ///< instructions replaced by a constant
    int identities = 0;  ///< instructions replaced by an operand, or by a cheaper instruction
    int control = 0;     ///< branches and loops resolved, invariant carries removed
    bool changed() const { return constants + identities + control > 0; }
};

/// Evaluates what is known at compile time and removes what does nothing. Every rule is exact to
/// the bit by docs/reference/ir.md, NaN and signed zeros included: for floats x * 0 stays, and x +
/// 0 stays because of -0.
FoldReport fold(Function& function);

}  // namespace tilewright::ir
