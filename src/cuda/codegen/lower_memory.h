// Loads, stores and atomics: addresses, bounds, vectors.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

/// The text of an access to a Ref.
struct AccessText {
    std::string pointer;  ///< of the first element of a thread
    Names offset;         ///< per register, in elements; "" is 0
    Names inside;         ///< per register: condition, "" is always
    int vector = 1;       ///< registers per access
    std::string window;   ///< bounds along the vector axis where they may cut a vector
    Names beside;         ///< per register: `inside` where `window` is `true`
    Names position;       ///< per register: coordinate along the vector axis
};
/// `indices` replace the index operands of the instruction.
AccessText access_text(Lowering& cx, const ir::Instruction& made, const Layout& layout,
                       const Names* indices = nullptr);
void lower_load(Lowering& cx, const ir::Instruction& made);
void lower_store(Lowering& cx, const ir::Instruction& made);
void lower_atomic(Lowering& cx, const ir::Instruction& made);
/// The value to pack: the f32 operand of a cast to f16 or bf16, else the value itself.
ir::Value before_rounding(const Lowering& cx, ir::Value value);
std::string ref_name(const Lowering& cx, ir::Value ref);
std::string extent_text(const Lowering& cx, ir::Value ref, int dim);
std::string stride_text(const Lowering& cx, ir::Value ref, int dim);

}  // namespace tilewright::cuda
