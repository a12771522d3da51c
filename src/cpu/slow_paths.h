// The slow parts of a compiled program, for TILEWRIGHT_DEBUG=1 and `tilewright explain`.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cpu/bytecode.h"

namespace tilewright::cpu {

/// One kind of slow path with its reason and its place in the user's source.
struct SlowPath {
    std::string what, reason;
    std::string source;  ///< "kernels.py:12, 14"; empty where unknown
};

/// "what, since reason (at source)".
std::string to_string(const SlowPath& path);

/// Scalar kernels, operations and dots without vector kernels, gathers and scatters, copies of
/// tiles between layouts, strided panels, scans with functions that are no list of operations on
/// elements, programs that run one after the other.
std::vector<SlowPath> slow_paths(const Program& program);

/// "kernels.py:12, 14; other.py:3" of lines in Program::locations.
std::string source_text(const Program& program, const std::set<std::uint32_t>& lines);

}  // namespace tilewright::cpu
