// Common subexpression elimination.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct CseReport {
    int merged = 0;  ///< instructions replaced by an equal earlier one
    bool changed() const { return merged > 0; }
};

/// Replaces an instruction by an equal one that dominates it: pure ops always, loads if nothing
/// that may share the memory was written in between. It lets tracing front ends repeat index
/// arithmetic freely.
CseReport cse(Function& function);

}  // namespace tilewright::ir
