// Loops and branches.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

void lower_for(Lowering& cx, const ir::Instruction& made);
void lower_while(Lowering& cx, const ir::Instruction& made);
void lower_branch(Lowering& cx, const ir::Instruction& made);

}  // namespace tilewright::cuda
