// Blocks, their operations, and elementwise arithmetic.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

void lower_block(Lowering& cx, const ir::Block& block);
/// The result in a layout.
Held lower_elementwise(Lowering& cx, const ir::Instruction& made, const Layout& layout);

}  // namespace tilewright::cuda
