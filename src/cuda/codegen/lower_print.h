// What kernels print for debugging.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

void lower_print(Lowering& cx, const ir::Instruction& made);

}  // namespace tilewright::cuda
