// The library of masks: who attends to whom.
#pragma once

#include "tilewright/mod.h"

namespace tilewright::masks {

/// q >= kv.
Mod causal();
/// 0 <= q - kv <= w.
Mod sliding_window(std::int64_t w);
/// kv < p or q >= kv.
Mod prefix_lm(std::int64_t p);
/// Positions with equal ids; `ids` of rank 1 (position) or 2 (batch, position). Not causal.
Mod document(const Capture& ids);

}  // namespace tilewright::masks
