// Inlining of mods.
#pragma once

#include <span>
#include <vector>

#include "ir/builder.h"
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

/// Appends the body of a mod applied to tiles, without a call: what `call` and `inline_calls` give,
/// but each result keeps the smallest shape it can. Arguments as for `Builder::call`.
std::vector<Value> append_mod(Builder& builder, const Function& mod,
                              std::span<const Value> arguments);

}  // namespace tilewright::ir
