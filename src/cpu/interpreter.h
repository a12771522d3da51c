// The scalar reference machine: evaluates tile IR directly, slow and obvious; also the checked
// mode.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/function.h"
#include "ir/launch.h"

namespace tilewright::cpu {

struct CheckOptions {
    bool bounds = true;  ///< an index outside its array that reaches a result, or a store outside
    bool poison = true;  ///< scratch and `outputs` start undefined: NaN (integers: 0xAA..)
    bool races = true;   ///< two programs writing one element, or one writing what another reads
    /// Per global Ref: the call does not define its contents, the kernel must write before it
    /// reads. Empty: every Ref holds data of the caller.
    std::vector<bool> outputs;
};

/// Evaluates every program of the grid, one after the other, one element at a time. The reference
/// that every other machine is compared with: docs/reference/ir.md is its specification. UserError
/// when the arguments do not fit the kernel.
void interpret(const ir::Function& kernel, const ir::Arguments& arguments);

/// The same with checks (docs/reference/checked_mode.md), for kernels as built, before any pass.
/// Throws UserError naming the kernel, the program, the Ref, the index and the user's source line
/// of the first violation.
void interpret_checked(const ir::Function& kernel, const ir::Arguments& arguments,
                       const CheckOptions& options = {});

}  // namespace tilewright::cpu
