// Operations across registers, lanes and warps: reductions, scans, sorts, printing.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

void lower_reduce(Lowering& cx, const ir::Instruction& made);
/// Finishes the reductions whose parts have not been read yet.
void read_warp_parts(Lowering& cx);
/// Combines the sums of the lanes that share an element, in all of them.
void join_lanes(Lowering& cx, const ir::Instruction& made, const Names& names);
void lower_scan(Lowering& cx, const ir::Instruction& made);
void lower_print(Lowering& cx, const ir::Instruction& made);
void lower_sort(Lowering& cx, const ir::Instruction& made);

}  // namespace tilewright::cuda
