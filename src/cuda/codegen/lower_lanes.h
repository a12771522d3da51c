// Operations across registers, lanes and warps: reductions.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

void lower_reduce(Lowering& cx, const ir::Instruction& made);
/// Finishes the reductions whose parts have not been read yet.
void read_warp_parts(Lowering& cx);
/// Of a carry to which lanes add their parts of a sum, the first lane that shares an element keeps
/// the initial value; the others have zero.
void keep_first_lane(Lowering& cx, const ir::Instruction& sum, const Held& carry);
/// Adds these parts in all of the lanes.
Held join_lanes(Lowering& cx, const ir::Instruction& sum, const Held& carry);

}  // namespace tilewright::cuda
