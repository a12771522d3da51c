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

/// Evaluates what is known at compile time and drops what does nothing. Every rule holds bit for
/// bit under docs/reference/ir.md, NaN and signed zeros included: x * 0 stays for floats, x + 0
/// stays because of -0.
FoldReport fold(Function& function);

}  // namespace tilewright::ir
