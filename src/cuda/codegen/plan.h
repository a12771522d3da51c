// What is decided about a kernel before its text is written.
#pragma once

#include <set>
#include <string>

#include "cuda/codegen/assign_layouts.h"
#include "cuda/codegen/defer_sums.h"
#include "cuda/codegen/dot_plan.h"
#include "cuda/codegen/kernel_facts.h"
#include "cuda/codegen/launch_plan.h"
#include "cuda/codegen/load_plan.h"
#include "cuda/codegen/private_scratch.h"
#include "cuda/codegen/stage_loads.h"

namespace tilewright::cuda {

/// The result of each pass; every one may use those before it.
struct Plan {
    explicit Plan(const KernelFacts& facts)
        : dots(plan_dots(facts)),
          staged(stage_loads(facts, dots)),
          layouts(assign_layouts(facts, dots, staged)),
          loads(plan_loads(facts, layouts, dots, staged)),
          sums(defer_sums(facts, layouts)),
          own_scratch(private_scratch(facts, layouts)),
          launch(plan_launch(facts, layouts, dots)) {}

    DotPlans dots;
    StagedLoads staged;
    Layouts layouts;
    LoadPlan loads;
    DeferredSums sums;
    std::set<ir::Value> own_scratch;
    LaunchPlan launch;
};

/// A line for each instruction about which something is decided: "load x: 4 stages ahead".
std::string print(const Plan& plan, const KernelFacts& facts);

}  // namespace tilewright::cuda
