// Generates the steps of mma products that a kernel needs.
#pragma once

#include <compare>
#include <set>
#include <string>

#include "tilewright/dtype.h"

namespace tilewright::cuda {

/// Steps along k of a warp's product: rows x columns instructions of 16 x 8 x 16 each, with the
/// right operand in shared memory.
struct MmaStep {
    int rows = 0, columns = 0;  ///< columns is even
    DType dtype = DType::bf16;  ///< f16 or bf16
    bool transposed = false;    ///< ldmatrix transposes the right operand as it loads it
    int loads = 0;              ///< steps whose left operand is in shared memory; 0: one, registers
    bool left_transposed = false;  ///< ldmatrix transposes the left operand
    auto operator<=>(const MmaStep&) const = default;
};

/// Text of device functions, one per step, selected by the types of their arguments:
///   twd::ptx::multiply(Bf16{}, Blocks<rows, columns>{}, Moved<transposed>{}, d..., a..., b...)
///   twd::ptx::multiply(..., Moved<transposed>{}, Loads<loads, left_transposed>{}, d..., a...,
///   b...)
/// d: four f32 registers of each instruction, by pairs of columns and then rows; a: four registers
/// of each row, or its address for ldmatrix.x4 in each step; b: the same address of each pair of
/// columns, in each step.
///
/// Each is one asm statement: one per instruction took a third of the compile time, one per step
/// an eighth of what was then left.
std::string mma_step_functions(const std::set<MmaStep>& steps);

}  // namespace tilewright::cuda
