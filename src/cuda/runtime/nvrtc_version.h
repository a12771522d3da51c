// Which NVRTC this process would open, as far as earlier processes know: opening it takes
// milliseconds, and kernels on disk are found by its version alone.
#pragma once

#include <optional>
#include <string>

#include "cuda/runtime/library.h"

namespace tilewright::cuda {

/// The version of the library that an earlier process found by this search (`nvrtc_search`);
/// nullopt if there was none, or if its file or what the system's loader searches has changed. A
/// library that would be found first may be there since: the process that opens it remembers it.
std::optional<std::string> remembered_version(const std::string& search);

/// Keeps on disk what a search has found, unless that is known.
void remember_version(const std::string& search, const LibraryReport& found);

}  // namespace tilewright::cuda
