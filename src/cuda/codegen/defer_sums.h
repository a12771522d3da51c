// Sums that loops carry, of which each lane keeps its part until the loop ends.
#pragma once

#include <map>
#include <vector>

#include "cuda/codegen/assign_layouts.h"
#include "cuda/codegen/kernel_facts.h"

namespace tilewright::cuda {

/// By loop, for each carry: the sum in l = l * exp(..) + sum(tile), or l + sum(tile), where a row
/// is within a warp; nullptr where there is none. Loops without such sums are missing.
using DeferredSums = std::map<const ir::Instruction*, std::vector<const ir::Instruction*>>;
DeferredSums defer_sums(const KernelFacts& facts, const Layouts& layouts);

}  // namespace tilewright::cuda
