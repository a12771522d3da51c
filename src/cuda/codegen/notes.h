// What a generated kernel does not do in the fastest way, and why.
#pragma once

#include <vector>

#include "cuda/codegen/generate.h"
#include "cuda/codegen/kernel_facts.h"
#include "cuda/codegen/plan.h"

namespace tilewright::cuda {

/// `workspace`: scratch is in global memory.
std::vector<Note> notes_of(const KernelFacts& facts, const Plan& plan, bool workspace);

}  // namespace tilewright::cuda
