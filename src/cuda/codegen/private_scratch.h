// Scratch that needs no barriers.
#pragma once

#include <set>

#include "cuda/codegen/assign_layouts.h"
#include "cuda/codegen/kernel_facts.h"

namespace tilewright::cuda {

/// Scratch Refs in which each thread accesses only its own elements.
std::set<ir::Value> private_scratch(const KernelFacts& facts, const Layouts& layouts);

}  // namespace tilewright::cuda
