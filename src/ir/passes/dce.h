// Dead code elimination.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct DceReport {
    int instructions = 0;  ///< removed
    int carries = 0;       ///< loop carries and branch results removed
    bool changed() const { return instructions + carries > 0; }
};

/// Removes instructions that write nothing and whose results are unused, and loop carries that only
/// feed themselves, so that front ends and other passes need not clean up after themselves.
DceReport dce(Function& function);

}  // namespace tilewright::ir
