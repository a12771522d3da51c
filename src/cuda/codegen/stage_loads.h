// Which loads go to shared memory for dots, and which of them run ahead of a loop's iterations.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cuda/codegen/dot_plan.h"
#include "cuda/codegen/kernel_facts.h"

namespace tilewright::cuda {

/// Loads that a loop copies to shared memory some iterations ahead, and the copies of each tile.
struct StagedLoop {
    std::vector<const ir::Instruction*> loads;
    int stages = 0;
};

struct StagedLoads {
    /// By load: why it is not copied to shared memory ahead of the dots that read it; "" if it is.
    std::map<const ir::Instruction*, std::string> refusals;
    std::map<const ir::Instruction*, StagedLoop> loops;  ///< those with such loads

    bool contains(const ir::Instruction& load) const {
        const auto found = refusals.find(&load);
        return found != refusals.end() && found->second.empty();
    }
};

/// A load of rows of aligned 16 bytes that only tensor core products read goes to shared memory;
/// in a loop it runs ahead if its indices can be computed and the loop does not write its array.
/// Without a number of stages, as many as take 64 KiB, 2 to 4.
StagedLoads stage_loads(const KernelFacts& facts, const DotPlans& dots);

}  // namespace tilewright::cuda
