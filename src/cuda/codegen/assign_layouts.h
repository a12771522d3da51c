// The layout of every tile.
#pragma once

#include <map>

#include "cuda/codegen/dot_plan.h"
#include "cuda/codegen/kernel_facts.h"
#include "cuda/codegen/stage_loads.h"

namespace tilewright::cuda {

using Layouts = std::map<ir::Value, Layout>;

/// Gives every tile its layout: the accumulators of dots have theirs, then scans, then loads and
/// stores from the largest to the smallest, and each spreads as far as no element moves. Loop
/// carries never change layout.
Layouts assign_layouts(const KernelFacts& facts, const DotPlans& dot_plans,
                       const StagedLoads& staged);

/// A value's layout; scalars have one, too.
Layout home_of(const KernelFacts& facts, const Layouts& layouts, ir::Value value);

/// The layout in which a scan runs: its axis has the lowest bits of registers, lanes and warps.
Layout scan_layout(const KernelFacts& facts, const ir::Instruction& scan);
/// Slices with the last elements of a scan's lines, in its order: what the lines combine to, which
/// every thread knows. For each result of the scan; none where threads do not know it.
std::vector<std::vector<ir::Value>> totals_of(const KernelFacts& facts,
                                              const ir::Instruction& scan);

}  // namespace tilewright::cuda
