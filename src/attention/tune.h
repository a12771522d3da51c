// Blocks of attention by measurement.
#pragma once

#include <functional>
#include <vector>

#include "attention/problem.h"
#include "tilewright/run.h"

namespace tilewright::attn {

/// The place in `trials` (at least one) of what serves a pass of a problem: the first, or, where
/// the caller asks for that, the one whose `run(place)` takes the least time on the problem's
/// device. Measured once for each pass, shapes, options and mods, then remembered in memory and on
/// disk; not while a CUDA graph is captured.
std::size_t tuned(const Problem& problem, const char* pass, const std::vector<Config>& trials,
                  const std::function<void(std::size_t)>& run);

/// The blocks for one pass of a problem: `wish`, with what it leaves open chosen by the fastest of
/// a few `run(blocks)` where the caller asks for that; of tile programs on the CPU.
AttentionBlocks tuned_blocks(const Problem& problem, const char* pass, const AttentionBlocks& wish,
                             const std::function<void(const AttentionBlocks&)>& run);

}  // namespace tilewright::attn
