// Replaces calls of mods by their bodies, applied to tiles.
#pragma once

#include "ir/function.h"

namespace tilewright::cpu {

/// Inlines every call in `function`. Rank-0 values of a mod become tiles of the call's shape where
/// they depend on a tile argument; loads become gathers, and branches on tiles become selects.
void inline_calls(ir::Function& function);

}  // namespace tilewright::cpu
