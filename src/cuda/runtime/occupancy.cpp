// Asks the driver.
#include "cuda/runtime/occupancy.h"

#include <dlfcn.h>

#include "cuda/runtime/device.h"
#include "cuda/runtime/launch_config.h"

namespace tilewright::cuda {
namespace {

using Count = int (*)(int*, FunctionHandle, const LaunchConfig*);

/// Not among the entries that every driver must have. The driver is open already.
Count find_count() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library == nullptr) return nullptr;
    return reinterpret_cast<Count>(dlsym(library, "cuOccupancyMaxActiveClusters"));
}

}  // namespace

std::optional<int> most_clusters(const Kernel& kernel, const LaunchShape& shape) {
    static const Count count = find_count();
    if (count == nullptr) return std::nullopt;
    LaunchAttribute cluster{};
    const LaunchConfig config = config_of(kernel, shape, cluster);
    const ContextScope scope(kernel.device);
    int clusters = 0;
    const bool known = count(&clusters, kernel.function, &config) == 0 && clusters > 0;
    return known ? std::optional(clusters) : std::nullopt;
}

}  // namespace tilewright::cuda
