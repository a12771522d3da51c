// Plans fused runs: which ops of a chain run together on blocks of lanes in registers.
#pragma once

#include <optional>
#include <span>

#include "cpu/bytecode.h"
#include "cpu/def_use.h"

namespace tilewright::cpu {

/// Finds the runs of a chain before its values become strip temporaries. `uses` covers the whole
/// program.
void plan_fused_runs(Chain& chain, const DefUse& uses, const Program& program);

/// The run of all ops of a chain, in one function where there is one for it; nullopt if there is
/// none or if it depends on positions.
std::optional<FusedRun> plan_whole_run(const Chain& chain, const DefUse& uses,
                                       const Program& program);

/// Makes a fused run that reads all lanes of `view` prefetch the view's rectangle of the loop's
/// next iteration. `chains` are the readers of the view, in order: the first one waits for memory
/// itself, the next one works in the cache, and the last may use non-temporal stores.
void prefetch_next(std::span<Chain* const> chains, std::uint32_t view);

}  // namespace tilewright::cpu
