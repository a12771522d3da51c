// Memory of GPUs behind tensors: allocation with a cache, copies, the current stream.
#pragma once

#include <cstdint>
#include <memory>

#include "tilewright/tensor.h"

namespace tilewright::run {

/// At least `bytes` of a GPU's memory. Freed memory is kept, per device and stream, and given out
/// again to work on the same stream, so that nothing has to wait. CudaError when memory runs out.
std::shared_ptr<void> allocate_on_gpu(std::int64_t bytes, int device);

/// Copies bytes between devices on the current stream; waits where the host takes part.
void copy_memory(void* to, Device to_device, const void* from, Device from_device,
                 std::int64_t bytes);

/// Sets bytes to zero on the current stream.
void clear_on_gpu(void* memory, std::int64_t bytes, int device);

}  // namespace tilewright::run
