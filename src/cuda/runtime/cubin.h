// Kernels of cubins that were compiled before, as artifacts hold them.
#pragma once

#include <string>

#include "cuda/runtime/kernel.h"

namespace tilewright::cuda {

/// Loads the kernel `entry` on a device, once, as `load_kernel` does. UserError where the driver
/// refuses the cubin, which messages call `name`.
Kernel load_cubin(const std::string& cubin, const std::string& name, const char* entry,
                  int dynamic_shared_bytes, int device);

}  // namespace tilewright::cuda
