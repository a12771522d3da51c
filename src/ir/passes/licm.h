// Loop-invariant code motion.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct LicmReport {
    int hoisted = 0;  ///< instructions moved out of a loop
    bool changed() const { return hoisted > 0; }
};

/// Moves instructions whose operands do not change in a loop in front of it: pure ones, and loads
/// from Refs that the loop does not write. Attention's q tile leaves the kv loop this way.
LicmReport licm(Function& function);

}  // namespace tilewright::ir
