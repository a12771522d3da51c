// Straight-line code: branches as selects, loops written out.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct StraightenReport {
    int branches = 0;  ///< if_else turned into selects
    int unrolled = 0;  ///< iterations written out
    bool changed() const { return branches + unrolled > 0; }
};

/// Rewrites a function without effects so that its body holds no blocks: calls are inlined, both
/// sides of a branch run and a select chooses, loops with constant bounds are unrolled. Debug ops
/// are dropped. UserError names what cannot be rewritten.
StraightenReport straighten(Function& function);

}  // namespace tilewright::ir
