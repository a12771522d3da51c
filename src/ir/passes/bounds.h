// Proofs that accesses stay inside their arrays.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct BoundsReport {
    int proved = 0;    ///< accesses newly marked in_bounds
    int unproved = 0;  ///< accesses that keep their checks
    bool changed() const { return proved > 0; }
};

/// Marks accesses of which no lane can leave the array, reasoning from grid extents, loop bounds,
/// and static and symbolic array extents. Only a proof for every call removes a check.
BoundsReport bounds(Function& function);

}  // namespace tilewright::ir
