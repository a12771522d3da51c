// Calls on CPU memory that run on a GPU, for whoever wants to try a program there.
#pragma once

#include <memory>
#include <optional>

#include "run/executable.h"

namespace tilewright::run {

/// The GPU that TILEWRIGHT_DEVICE names ("cuda", "cuda:1"); nothing for "cpu" or when it is unset.
/// UserError for any other value.
std::optional<int> offload_device();

/// Runs a kernel on arrays in CPU memory on a GPU: copies them there, waits, and copies back what
/// the kernel writes.
std::unique_ptr<Executable> make_offloaded_executable(ir::Function kernel, int device);

}  // namespace tilewright::run
