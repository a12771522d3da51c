// Matrix products: fragments, instructions of tensor cores, multiply-adds.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

void lower_dot(Lowering& cx, const ir::Instruction& made);
/// Loads operands that a loop does not change into registers before it.
void hoist_fragments(Lowering& cx, const ir::Instruction& loop);

// ---- What products of 16-bit elements and of bytes share.

/// The copy of an operand in shared memory.
const SharedTile& operand_tile(Lowering& cx, const DotPlan& plan, const DotOperand& operand);
/// Also copies the operands of the next dots of the block, if available, for which one barrier is
/// enough.
void copy_operands_ahead(Lowering& cx, const ir::Instruction& made);
/// The four words of one 16 x 16 piece of the left operand, from shared memory.
Names left_words(Lowering& cx, const DotPlan& plan, const DotOperand& operand,
                 const Coordinates& at, std::int64_t k);
void multiply_bytes(Lowering& cx, const ir::Instruction& made, const DotPlan& plan, Names& c);

}  // namespace tilewright::cuda
