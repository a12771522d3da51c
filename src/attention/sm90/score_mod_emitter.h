// Writes the text of a score mod (see score_mod.h).
#pragma once

#include <string>

#include "attention/sm90/score_mod.h"

namespace tilewright::attn::sm90 {

inline constexpr std::int64_t kMaxExtent = std::int64_t{1} << 30;  ///< of captures

/// Text of "score_mod.cuh" for a mod without calls and branches. UserError naming an op that has no
/// text.
std::string emit_score_mod(const ir::Function& mod, const ScoreModFacts& facts);

}  // namespace tilewright::attn::sm90
