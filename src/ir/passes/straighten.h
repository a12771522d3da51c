// Straight-line code: branches become selects, loops are unrolled.
#pragma once

#include <string>

#include "ir/function.h"

namespace tilewright::ir {

struct StraightenReport {
    int branches = 0;     ///< if_else turned into selects
    int unrolled = 0;     ///< iterations unrolled
    std::string refusal;  ///< what cannot be rewritten; the function is then of no use
    bool changed() const { return branches + unrolled > 0; }
};

/// Rewrites a function without effects so that its body has no blocks: calls are inlined, both
/// sides of a branch run and a select chooses, loops with constant bounds are unrolled. Debug ops
/// are removed.
StraightenReport try_straighten(Function& function);
/// The same; UserError names what cannot be rewritten.
StraightenReport straighten(Function& function);

}  // namespace tilewright::ir
