// The mods of a call as the one score mod that the Hopper kernels inline.
#pragma once

#include <memory>
#include <vector>

#include "attention/spec.h"

namespace tilewright::attn::sm90 {

/// The score mod with the mask that is evaluated (if there is one) folded in; null: neither. One
/// function object for each text, whatever mod it came from: the engine knows mods by address.
std::shared_ptr<const ir::Function> combined_mod(const AttentionSpec& spec);

/// The captures of both.
std::vector<CaptureSpec> combined_captures(const AttentionSpec& spec);

}  // namespace tilewright::attn::sm90
