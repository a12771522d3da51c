// How threads keep what they load: packed, loaded again at each use, or an iteration ahead.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "cuda/codegen/assign_layouts.h"
#include "cuda/codegen/kernel_facts.h"
#include "cuda/codegen/stage_loads.h"

namespace tilewright::cuda {

struct LoadPlan {
    /// A thread holds so many elements of a loop's loads that registers are short: they stay packed
    /// during reductions, and nothing is loaded ahead.
    bool is_wide = false;
    /// If is_wide: loads before the loop, which are repeated at their uses.
    std::set<ir::Value> repeated;
    /// Loads that stay in words of 16 bytes, whose elements are unpacked at their use.
    std::set<ir::Value> packed;
    /// By loop without dots: loads into registers that are issued an iteration ahead.
    std::map<const ir::Instruction*, std::vector<const ir::Instruction*>> ahead;
};

LoadPlan plan_loads(const KernelFacts& facts, const Layouts& layouts, const DotPlans& dots,
                    const StagedLoads& staged);

}  // namespace tilewright::cuda
