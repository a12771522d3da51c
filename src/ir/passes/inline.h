// Inlining of mods.
#pragma once

#include <span>
#include <vector>

#include "ir/builder.h"
#include "ir/function.h"

namespace tilewright::ir {

struct InlineReport {
    int calls = 0;  ///< replaced by the bodies of their mods
    bool changed() const { return calls > 0; }
};

/// Replaces every call by the body of its mod, applied to tiles. Values keep the smallest possible
/// shape, so that a term that depends only on the row is computed once per row; branches become
/// selects. UserError for a mod that cannot be applied element by element (tiles, while loops,
/// loops whose bounds differ between elements).
InlineReport inline_calls(Function& function);

/// Appends the body of a mod applied to tiles, as `call` and `inline_calls` do together, except
/// that each result keeps its smallest possible shape. Arguments as for `Builder::call`.
std::vector<Value> append_mod(Builder& builder, const Function& mod,
                              std::span<const Value> arguments);

}  // namespace tilewright::ir
