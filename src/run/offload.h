// Runs calls on CPU memory on a GPU, for trying a program there.
#pragma once

#include <memory>
#include <optional>

#include "run/executable.h"

namespace tilewright::run {

/// The GPU that TILEWRIGHT_DEVICE names ("cuda", "cuda:1"); nullopt for "cpu" or if it is unset.
/// UserError for any other value.
std::optional<int> offload_device();

/// Runs a kernel on a GPU with arrays in CPU memory: copies them there, waits, and copies back what
/// the kernel writes.
std::unique_ptr<Executable> make_offloaded_executable(ir::Function kernel, int device);

}  // namespace tilewright::run
