// Replaces runs of operations in strip chains by superinstructions.
#pragma once

#include "cpu/lower.h"

namespace tilewright::cpu {

/// Looks for the patterns of Superinstructions (simd/kernels.h) in every chain of `region`.
void select_superinstructions(Region& region, Program& program);

}  // namespace tilewright::cpu
