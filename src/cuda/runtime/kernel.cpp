// Loading cubins and launching kernels.
#include "cuda/runtime/kernel.h"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "cuda/runtime/cubin.h"
#include "cuda/runtime/stream.h"
#include "support/check.h"
#include "support/disk_cache.h"

namespace tilewright::cuda {
namespace {

// CUfunction_attribute.
constexpr int kFunctionLocalBytes = 3;
constexpr int kFunctionRegisters = 4;
constexpr int kFunctionDynamicShared = 8;

// CUlaunchConfig and CUlaunchAttribute of the driver's ABI.
struct LaunchAttribute {
    int id;
    char pad[4];
    union {
        unsigned cluster[3];
        char bytes[64];
    } value;
};
static_assert(sizeof(LaunchAttribute) == 72);
constexpr int kLaunchAttributeCluster = 4;

struct LaunchConfig {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    StreamHandle stream;
    LaunchAttribute* attributes;
    unsigned attribute_count;
};

ModuleHandle load_module(const CompileRequest& request) {
    const Driver& cuda = driver();
    ModuleHandle module = nullptr;
    if (cuda.cuModuleLoadData(&module, cubin_of(request)->data()) == 0) return module;
    // The cubin may come from a damaged or foreign cache: compile it afresh, once.
    forget_cubin(request);
    cuda.check(cuda.cuModuleLoadData(&module, cubin_of(request)->data()), "loading a kernel");
    return module;
}

/// Loads a kernel: `load` gives its module and its symbol there. `identity` tells modules apart.
template <typename Load>
Kernel load_entry(const std::string& name, const std::string& identity, const char* entry,
                  int dynamic_shared_bytes, int device, const Load& load) {
    const DeviceInfo& info = device_info(device);
    if (dynamic_shared_bytes > info.shared_bytes_per_block) {
        user_error("cuda", "{}: expected at most {} bytes of shared memory on {} but got {}", name,
                   info.shared_bytes_per_block, info.name, dynamic_shared_bytes);
    }
    expect_no_capture("cuda", fmt::format("{} to be loaded", name));
    // Kernels are not unloaded: a graph may hold them. So the same one is not loaded twice.
    using Key = std::tuple<std::string, std::string, int, int>;
    static std::mutex mutex;
    static auto* const kLoaded = new std::map<Key, Kernel>;
    const Key key(identity, entry, dynamic_shared_bytes, device);
    {
        const std::lock_guard lock(mutex);
        if (const auto found = kLoaded->find(key); found != kLoaded->end()) return found->second;
    }
    const ContextScope scope(device);
    const Driver& cuda = driver();
    Kernel kernel;
    kernel.device = device;
    kernel.dynamic_shared_bytes = dynamic_shared_bytes;
    const auto [module, symbol] = load();
    cuda.check(cuda.cuModuleGetFunction(&kernel.function, module, symbol.c_str()),
               "finding a kernel");
    cuda.check(
        cuda.cuFuncSetAttribute(kernel.function, kFunctionDynamicShared, dynamic_shared_bytes),
        "reserving shared memory");
    cuda.check(cuda.cuFuncGetAttribute(&kernel.registers, kFunctionRegisters, kernel.function),
               "reading a kernel's registers");
    cuda.check(cuda.cuFuncGetAttribute(&kernel.local_bytes, kFunctionLocalBytes, kernel.function),
               "reading a kernel's stack");
    const std::lock_guard lock(mutex);
    return kLoaded->emplace(key, kernel).first->second;
}

}  // namespace

Kernel load_kernel(const CompileRequest& request, const char* entry, int dynamic_shared_bytes,
                   int device) {
    return load_entry(request.name, cache_key(request), entry, dynamic_shared_bytes, device, [&] {
        const ModuleHandle module = load_module(request);
        return std::pair(module, symbol_of(request, entry));
    });
}

Kernel load_cubin(const std::string& cubin, const std::string& name, const char* entry,
                  int dynamic_shared_bytes, int device) {
    return load_entry(name, content_hash(cubin), entry, dynamic_shared_bytes, device, [&] {
        ModuleHandle module = nullptr;
        if (const int status = driver().cuModuleLoadData(&module, cubin.data()); status != 0)
            user_error("cuda", "expected a cubin that {} takes in {} but its driver gives error {}",
                       device_info(device).name, name, status);
        return std::pair(module, std::string(entry));
    });
}

void launch(const Kernel& kernel, const LaunchShape& shape, std::span<void* const> parameters,
            StreamHandle stream) {
    LaunchConfig config{};
    for (std::size_t axis = 0; axis < 3; ++axis) {
        config.grid[axis] = shape.grid[axis];
        config.block[axis] = shape.block[axis];
    }
    config.shared_bytes = static_cast<unsigned>(kernel.dynamic_shared_bytes);
    config.stream = stream;
    LaunchAttribute cluster{};
    if (shape.cluster != std::array<unsigned, 3>{1, 1, 1}) {
        cluster.id = kLaunchAttributeCluster;
        for (std::size_t axis = 0; axis < 3; ++axis) {
            cluster.value.cluster[axis] = shape.cluster[axis];
        }
        config.attributes = &cluster;
        config.attribute_count = 1;
    }
    const ContextScope scope(kernel.device);
    driver().check(driver().cuLaunchKernelEx(&config, kernel.function,
                                             const_cast<void**>(parameters.data()), nullptr),
                   "launching a kernel");
}

}  // namespace tilewright::cuda
