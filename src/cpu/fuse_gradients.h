// Finds chains that compute probabilities and score gradients of attention as pairs of bf16.
#pragma once

#include "cpu/bytecode.h"
#include "cpu/def_use.h"

namespace tilewright::cpu {

/// Makes the ops that compute P and dS one fused run, if the chain has them and this table a
/// function for them (Superinstructions::gradient_pairs); false if not. To be called before values
/// become strip temporaries.
bool plan_gradient_run(Chain& chain, const DefUse& uses, const Program& program);

}  // namespace tilewright::cpu
