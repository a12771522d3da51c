// Loaded kernels and how to launch them.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>

#include "cuda/runtime/compiler.h"
#include "cuda/runtime/device.h"

namespace tilewright::cuda {

/// A module of the driver, loaded on a device.
class Module;

/// A kernel in a device's memory, ready to launch. It stays loaded while a copy of this lives, and
/// while a graph does that captured a launch of it.
struct Kernel {
    std::shared_ptr<Module> module;
    std::shared_ptr<const std::string> name;  ///< shown by profilers
    FunctionHandle function = nullptr;
    int device = 0;
    int dynamic_shared_bytes = 0;  ///< given to every launch
    int registers = 0;             ///< per thread, at entry
    int local_bytes = 0;           ///< stack and spills per thread
};

/// Compiles (or finds) a request's cubin and loads its kernel `entry` on a device. Load before a
/// capture: loading allocates. A cubin from the disk cache that the driver refuses is compiled
/// again.
Kernel load_kernel(const CompileRequest& request, const char* entry, int dynamic_shared_bytes,
                   int device);

/// The shape of one launch.
struct LaunchShape {
    std::array<unsigned, 3> grid{1, 1, 1};
    std::array<unsigned, 3> block{1, 1, 1};
    std::array<unsigned, 3> cluster{1, 1, 1};
};

/// Launches on a stream (nullptr: the legacy default stream). Allocates nothing and waits for
/// nothing, so it can be captured in a graph. `parameters` point at the kernel's parameters in
/// order.
void launch(const Kernel& kernel, const LaunchShape& shape, std::span<void* const> parameters,
            StreamHandle stream);

}  // namespace tilewright::cuda
