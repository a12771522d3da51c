// Matrix products: which operands are in shared memory and which in registers.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

void lower_dot(Lowering& cx, const ir::Instruction& made);
/// Loads operands that a loop does not change into registers before it.
void hoist_fragments(Lowering& cx, const ir::Instruction& loop);

}  // namespace tilewright::cuda
