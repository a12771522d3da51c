// Blocks of attention's tile programs by measurement.
#pragma once

#include <functional>

#include "attention/problem.h"

namespace tilewright::attn {

/// The blocks for one pass of a problem: `wish`, with what it leaves open chosen by the fastest of
/// a few `run(blocks)` where the caller asks for that. Measured once for each pass, shapes, options
/// and mods, then remembered in memory and on disk.
AttentionBlocks tuned_blocks(const Problem& problem, const char* pass, const AttentionBlocks& wish,
                             const std::function<void(const AttentionBlocks&)>& run);

}  // namespace tilewright::attn
