// Inlining of mods.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct InlineReport {
    int calls = 0;  ///< replaced by the body of their mod
    bool changed() const { return calls > 0; }
};

/// Replaces every call by the body of its mod, applied to tiles. Values keep the smallest shape
/// they can, so a term that depends on the row alone is computed once per row; branches become
/// selects. UserError when a mod holds what cannot be applied element by element (tiles, while
/// loops, loops whose bounds differ between elements).
InlineReport inline_calls(Function& function);

}  // namespace tilewright::ir
