// Loop-invariant code motion.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct LicmReport {
    int hoisted = 0;  ///< instructions moved out of a loop
    bool changed() const { return hoisted > 0; }
};

/// Moves instructions whose operands do not change in a loop to before the loop: pure ones, and
/// loads from Refs that the loop does not write, such as attention's load of the q tile.
LicmReport licm(Function& function);

}  // namespace tilewright::ir
