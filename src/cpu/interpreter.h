// The scalar reference machine: evaluates tile IR directly, slowly and simply; also the checked
// mode.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/function.h"
#include "ir/launch.h"

namespace tilewright::cpu {

struct CheckOptions {
    bool bounds = true;  ///< an outside index that reaches a result, or a store outside
    bool poison = true;  ///< scratch and `outputs` start undefined: NaN (integers: 0xAA..)
    bool races = true;   ///< a program writes an element that another one writes or reads
    /// Per global Ref: the call does not define its contents, so the kernel must write them before
    /// it reads them. Empty: every Ref holds the caller's data.
    std::vector<bool> outputs;
};

/// Evaluates every program of the grid, one after the other, one element at a time: the reference
/// that every other machine is compared with, specified by docs/reference/ir.md. UserError when the
/// arguments do not fit the kernel.
void interpret(const ir::Function& kernel, const ir::Arguments& arguments);

/// The same with checks (docs/reference/checked_mode.md), for kernels as built, before any pass.
/// Throws UserError at the first violation, naming the kernel, the program, the Ref, the index and
/// the line of the user's source.
void interpret_checked(const ir::Function& kernel, const ir::Arguments& arguments,
                       const CheckOptions& options = {});

}  // namespace tilewright::cpu
