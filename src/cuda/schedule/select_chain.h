// Loops whose products depend on each other, as in attention.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Is an operand of a dot computed in a loop, or does a loop compute with the result of a dot?
bool has_chains(const Program& program);

/// Makes the dots of a program with chains products of warpgroups: left operands that are computed
/// come from registers, and sums that start anew in each iteration are overwritten. Refused, with
/// the reason, where a product does not qualify.
void select_chain(Program& program);

}  // namespace tilewright::cuda::schedule
