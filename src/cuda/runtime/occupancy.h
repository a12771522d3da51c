// How many clusters a GPU runs at once.
#pragma once

#include <optional>

#include "cuda/runtime/kernel.h"

namespace tilewright::cuda {

/// How many clusters of a shape run at once on the kernel's GPU; nothing where the driver cannot
/// tell.
std::optional<int> most_clusters(const Kernel& kernel, const LaunchShape& shape);

}  // namespace tilewright::cuda
