// What of a compiled program is slow, for TILEWRIGHT_DEBUG=1.
#pragma once

#include <string>
#include <vector>

#include "cpu/bytecode.h"

namespace tilewright::cpu {

/// A line with its reason for each kind of slow path: scalar kernels, operations and dots without
/// kernels for vectors, gathers and scatters, programs that run one after the other.
std::vector<std::string> slow_paths(const Program& program);

}  // namespace tilewright::cpu
