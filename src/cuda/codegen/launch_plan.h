// In which order the programs of a kernel start, and how many blocks share a multiprocessor.
#pragma once

#include "cuda/codegen/assign_layouts.h"
#include "cuda/codegen/dot_plan.h"
#include "cuda/codegen/kernel_facts.h"

namespace tilewright::cuda {

struct LaunchPlan {
    /// Loops grow with the number of the program: the last one starts first.
    bool last_first = false;
    /// To which registers are limited; 0: not at all.
    int blocks = 0;
};

/// Kernels without dots have one block on each multiprocessor at least, and two of the largest size
/// where threads load few elements and loops carry none.
LaunchPlan plan_launch(const KernelFacts& facts, const Layouts& layouts, const DotPlans& dots);

}  // namespace tilewright::cuda
