// The program that `dump` and `explain` describe.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace tilewright::cli {

/// A built-in program or a file of IR text, and the options that select its form.
struct KernelChoice {
    std::string kernel, dtype, arch;
    std::string mask, score;
    std::vector<std::string> bind;
};

/// Adds the argument and the options.
void add_kernel_choice(CLI::App& command, KernelChoice& choice);

/// The IR text of the program: with the blocks for a CPU and fixed extents or, if `gpu`, as calls
/// run it there. `lines` adds source lines where they are known.
std::string choose_kernel(const char* op, const KernelChoice& choice, bool gpu, bool lines,
                          StandardInput& input);

}  // namespace tilewright::cli
