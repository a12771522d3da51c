// Checks the arguments of a call against the kernel.
#pragma once

#include "ir/function.h"
#include "ir/launch.h"

namespace tilewright::cpu {

/// UserError when the number of Refs or scalars, the grid, an extent or a null pointer does not fit
/// the kernel; it names the parameter.
void check_arguments(const ir::Function& kernel, const ir::Arguments& arguments);

class Program;

/// The same for a program's kernel, in less time.
void check_arguments(const Program& program, const ir::Arguments& arguments);

}  // namespace tilewright::cpu
