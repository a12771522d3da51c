// Writes the text of a score mod (see score_mod.h).
#pragma once

#include <span>

#include "attention/sm90/score_mod.h"
#include "ir/passes/differentiate.h"

namespace tilewright::attn::sm90 {

inline constexpr std::int64_t kMaxExtent = std::int64_t{1} << 30;  ///< largest extent of captures

/// The text of "score_mod.cuh" for a mod without calls and branches. For the backward pass its
/// second result is the derivative with respect to the score, and `gathers` describes the results
/// after it. UserError naming the op that has no text.
ScoreModText emit_score_mod(const ir::Function& mod, const ScoreModFacts& facts,
                            std::span<const ir::GatherGradient> gathers = {});

}  // namespace tilewright::attn::sm90
