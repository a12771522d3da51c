// Joins elementwise and reducing instructions into strip chains.
#pragma once

#include <map>

#include "cpu/lower.h"

namespace tilewright::cpu {

/// Elements of a strip: 16 rows of a panel, so that a chain's temporaries stay in the L1 cache.
inline constexpr std::int64_t kStripElements = 16 * kPanelLanes;

/// Joins chains over equal spaces throughout `region`, replaces runs of operations by
/// superinstructions, and keeps values that one chain alone uses in strip temporaries.
void form_chains(Region& region, Program& program);

}  // namespace tilewright::cpu
