// Memory for what a call computes on the way.
#pragma once

#include <cstdint>

#include "tilewright/tensor.h"

namespace tilewright::run {

/// Bytes for intermediate results, undefined for none. On a GPU up to 4 MiB come from the
/// library's own cache even where the caller has an allocator, which costs more.
Tensor scratch(std::int64_t bytes, Device device);

}  // namespace tilewright::run
