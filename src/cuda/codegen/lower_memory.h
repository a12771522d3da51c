// Loads, stores and atomics: addresses, bounds, vectors.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

/// The attributes of an access: where it is in its array, what is tested of its indices, and how
/// many elements a thread accesses at once.
void describe_access(Lowering& cx, schedule::Instruction& same, const ir::Instruction& made,
                     int vector);
/// An access to a tile in a layout, without the values that are stored and without `other`.
/// `indices`: where they are not those of the instruction.
schedule::Instruction array_access(Lowering& cx, const ir::Instruction& made, const Layout& layout,
                                   std::vector<schedule::Value> indices = {});
void lower_load(Lowering& cx, const ir::Instruction& made);
void lower_store(Lowering& cx, const ir::Instruction& made);
void lower_atomic(Lowering& cx, const ir::Instruction& made);
/// The value to pack: the f32 operand of a cast to f16 or bf16, else the value itself.
ir::Value before_rounding(const Lowering& cx, ir::Value value);
std::string ref_name(const Lowering& cx, ir::Value ref);

}  // namespace tilewright::cuda
