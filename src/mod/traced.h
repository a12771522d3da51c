// A mod as tile IR, which masks and attention evaluate, analyse and inline.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ir/function.h"
#include "ir/passes/differentiate.h"
#include "tilewright/mod.h"

namespace tilewright::mod {

/// The parameters are scalars: the score (only in score mods), then b, h, q, kv as i64, then, in
/// the checked mode, `attends` (bool: whether an index outside a capture is an error for this
/// pair); then one Ref per capture, with dynamic extents. The function yields one scalar: bool for
/// masks, the score's dtype for scores. Accesses to Refs are clamped, and read nothing from an
/// empty array.
struct Traced {
    std::shared_ptr<const ir::Function> function;
    std::vector<Capture> captures;  ///< in order of first use
    std::string text;               ///< the printed function: the key of what is compiled from it
    /// A derivative written by the caller, in the form of ir::differentiate's; null: none.
    std::shared_ptr<const ir::Function> derivative = {};
    std::vector<ir::GatherGradient> gathers = {};
};

/// Traces the mod for scores of this dtype, once for each mod: later calls return the same object.
/// UserError if the mod returns the wrong type or cannot be traced.
const Traced& trace(const Mod& mod, DType score = DType::f32, bool checked = false);

/// UserError "[op] ..." unless the mod is defined and of this kind; `argument` names it.
void expect_kind(const char* op, const char* argument, const Mod& mod, Mod::Kind kind);

}  // namespace tilewright::mod
