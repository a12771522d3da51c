// Which NVRTC this process would open, as far as earlier processes know: opening it takes
// milliseconds, and kernels on disk are found by its version alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda/runtime/library.h"

namespace tilewright::cuda {

/// The version of the library that a search of these candidates found in an earlier process;
/// nullopt if there was none, or if its file or what the system's loader searches has changed.
std::optional<std::string> remembered_version(const std::vector<std::string>& candidates);

/// Keeps on disk what a search of these candidates has found.
void remember_version(const std::vector<std::string>& candidates, const LibraryReport& found);

}  // namespace tilewright::cuda
