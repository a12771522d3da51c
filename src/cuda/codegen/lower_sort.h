// Sorts.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

void lower_sort(Lowering& cx, const ir::Instruction& made);

}  // namespace tilewright::cuda
