// Loops whose products depend on each other, as in attention.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Is an operand of a dot computed in a loop, or does a loop compute with what a dot gives?
bool has_chains(const Program& program);

/// Dots of a program with chains become products of warpgroups: left operands that are computed
/// come from registers, sums that start anew in each iteration are not added to. Refused, with the
/// reason, where a product does not qualify.
void select_chain(Program& program);

}  // namespace tilewright::cuda::schedule
