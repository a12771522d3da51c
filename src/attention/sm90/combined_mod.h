// The mods of a call as the one score mod that the Hopper kernels inline.
#pragma once

#include <memory>
#include <vector>

#include "attention/spec.h"

namespace tilewright::attn::sm90 {

/// The score mod with the mask mod (if programs evaluate it) folded in; null if there is neither.
/// Equal texts give the same function object, since the engine identifies mods by address.
std::shared_ptr<const ir::Function> combined_mod(const AttentionSpec& spec);

/// The captures of both mods.
std::vector<CaptureSpec> combined_captures(const AttentionSpec& spec);

}  // namespace tilewright::attn::sm90
