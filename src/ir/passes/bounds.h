// Proofs that accesses stay inside their arrays.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct BoundsReport {
    int proved = 0;    ///< accesses newly marked in_bounds
    int unproved = 0;  ///< accesses that keep their checks
    bool changed() const { return proved > 0; }
};

/// Marks the accesses none of whose lanes can leave the array: program ids below their grid,
/// induction variables below their loop's end, static and symbolic extents. A check is only ever
/// removed by a proof that holds for every call.
BoundsReport bounds(Function& function);

}  // namespace tilewright::ir
