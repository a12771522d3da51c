// Generates the steps of mma products that a kernel needs.
#pragma once

#include <compare>
#include <set>
#include <string>

#include "tilewright/dtype.h"

namespace tilewright::cuda {

/// One step along k of a warp's product: rows x columns instructions of 16 x 8 x 16, with the left
/// operand in registers and the right one in shared memory.
struct MmaStep {
    int rows = 0, columns = 0;  ///< columns is even
    DType dtype = DType::bf16;  ///< f16 or bf16
    bool transposed = false;    ///< ldmatrix transposes the right operand as it loads it
    auto operator<=>(const MmaStep&) const = default;
};

/// Text of device functions, one per step, selected by the types of their arguments:
///   twd::ptx::multiply(Bf16{}, Blocks<rows, columns>{}, Moved<transposed>{}, d..., a..., b...)
/// d: four f32 registers of each instruction, by pairs of columns and then rows; a: four registers
/// of each row; b: the address for ldmatrix.x4, of each pair of columns.
///
/// A step is one asm statement: one statement per instruction took a third of the compile time.
std::string mma_step_functions(const std::set<MmaStep>& steps);

}  // namespace tilewright::cuda
