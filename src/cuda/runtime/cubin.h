// Loads kernels from cubins that were compiled earlier, such as those of artifacts.
#pragma once

#include <string>

#include "cuda/runtime/kernel.h"

namespace tilewright::cuda {

/// Loads the kernel `entry` on a device, once, as `load_kernel` does. `name` is the cubin's in
/// messages; UserError where the driver refuses it.
Kernel load_cubin(const std::string& cubin, const std::string& name, const char* entry,
                  int dynamic_shared_bytes, int device);

}  // namespace tilewright::cuda
