// The ways to schedule a product that are worth measuring.
#pragma once

#include <vector>

#include "cuda/codegen/generate.h"
#include "cuda/schedule/program.h"
#include "ir/function.h"

namespace tilewright::cuda::schedule {

/// Tiles, pairs and parts of the inner dimension that the scheduled form supports, with different
/// kernels, whose estimated time is not far from the best; the one used without measuring first.
/// Empty where the form does not support the kernel or its blocks keep their size.
std::vector<Choice> choices_of(const ir::Function& kernel, const Target& target);

/// A choice, followed by the same with other orders of tiles and fewer stages.
std::vector<Choice> refinements_of(const ir::Function& kernel, const Target& target,
                                   const Choice& choice);

}  // namespace tilewright::cuda::schedule
