// Blocks, their operations, and elementwise arithmetic.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

void lower_block(Lowering& cx, const ir::Block& block);
/// The elements of the result in a layout.
Names lower_elementwise(Lowering& cx, const ir::Instruction& made, const Layout& layout,
                        ir::Value result);
/// Of one element, from the text of its operands.
std::string elementwise_text(const Lowering& cx, const ir::Instruction& made, const Names& x);

}  // namespace tilewright::cuda
