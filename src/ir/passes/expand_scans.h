// Scans with the user's function as slices, applications of the function, and concatenations.
#pragma once

#include <functional>

#include "ir/function.h"

namespace tilewright::ir {

struct ExpandScansReport {
    int scans = 0;  ///< replaced
    bool changed() const { return scans > 0; }
};

/// Replaces each `associative_scan` for which `wanted` is true (all of them without it) by
/// log2(length) steps, rounded up (Hillis and Steele, 1986), which call its function: for machines
/// and passes that have no rule for the op. Run `inline_calls` afterwards.
ExpandScansReport expand_scans(Function& function,
                               const std::function<bool(const Instruction&)>& wanted = {});

}  // namespace tilewright::ir
