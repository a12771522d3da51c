// What a search for NVRTC depends on.
#pragma once

#include <string>

namespace tilewright::cuda {

/// What `nvrtc_candidates` depends on besides the files in folders, as text. To list folders takes
/// a millisecond or two, this microseconds.
std::string nvrtc_search();

}  // namespace tilewright::cuda
