// Counts launches of kernels.
#pragma once

#include <cstdint>

namespace tilewright::cuda {

/// The number of launches that this thread has made.
std::uint64_t launched_by_thread();

}  // namespace tilewright::cuda
