// Common subexpression elimination.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct CseReport {
    int merged = 0;  ///< instructions replaced by an equal earlier one
    bool changed() const { return merged > 0; }
};

/// Replaces an instruction by an equal one that dominates it: pure ops always, loads while nothing
/// that may share the memory was written in between. Tracing front ends repeat index arithmetic
/// freely because of it.
CseReport cse(Function& function);

}  // namespace tilewright::ir
