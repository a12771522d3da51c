// GPUs of this machine and their primary contexts.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/runtime/driver.h"

namespace tilewright::cuda {

/// What kernels and heuristics need to know about a GPU.
struct DeviceInfo {
    int ordinal = 0;
    std::string name;
    int major = 0;  ///< compute capability
    int minor = 0;
    int multiprocessors = 0;
    std::size_t memory_bytes = 0;
    std::size_t l2_bytes = 0;
    int shared_bytes_per_block = 0;  ///< the most a block may ask for

    /// The NVRTC target: "sm_80"; "sm_90a" and later carry the suffix of arch-specific features.
    std::string arch() const;
};

/// The number of GPUs that the driver reports; 0 without a driver.
int device_count();

/// Properties of one GPU; throws UserError for an ordinal that does not exist.
const DeviceInfo& device_info(int ordinal);

/// Makes a device's primary context current for one scope. The CUDA runtime uses the same context,
/// so it is shared with PyTorch, JAX and whatever else runs in the process.
class ContextScope {
  public:
    explicit ContextScope(int ordinal);
    ~ContextScope();
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;
};

/// The device that owns an address; throws UserError naming `argument` for a host address.
int device_of(DeviceAddress address, const char* argument);

/// Everything `doctor` prints about CUDA.
struct Probe {
    LibraryReport driver;
    LibraryReport nvrtc;
    std::vector<DeviceInfo> devices;
    std::string nvdisasm;  ///< its path; empty: not found
    std::string cache_folder;
    std::string text() const;  ///< a few lines for people
};
Probe probe();

}  // namespace tilewright::cuda
