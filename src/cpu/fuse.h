// Plans fused runs: which ops of a chain are done together on blocks of lanes in registers.
#pragma once

#include <map>

#include "cpu/affine.h"
#include "cpu/bytecode.h"

namespace tilewright::cpu {

/// Finds the runs of a chain before its values become strip temporaries. `reads` counts how often
/// each buffer is read in the whole program.
void plan_fused_runs(Chain& chain, const std::map<std::uint32_t, int>& reads, const Makers& makers,
                     const Program& program);

/// Lets the fused run of `chain` that reads all lanes of `view`, if there is one, fetch the view's
/// rectangle of the loop's next turn.
void prefetch_next(Chain& chain, std::uint32_t view);

}  // namespace tilewright::cpu
