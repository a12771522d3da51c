// Loading cubins and launching kernels.
#include "cuda/runtime/kernel.h"

#include <map>
#include <mutex>
#include <tuple>

#include "cuda/runtime/stream.h"
#include "support/check.h"

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

}  // namespace

Kernel load_kernel(const CompileRequest& request, const char* entry, int dynamic_shared_bytes,
                   int device) {
    const DeviceInfo& info = device_info(device);
    if (dynamic_shared_bytes > info.shared_bytes_per_block) {
        user_error("cuda", "{}: expected at most {} bytes of shared memory on {} but got {}",
                   request.name, info.shared_bytes_per_block, info.name, dynamic_shared_bytes);
    }
    expect_no_capture("cuda", fmt::format("{} to be loaded", request.name));
    // Kernels are not unloaded: a graph may hold them. So the same one is not loaded twice.
    using Key = std::tuple<std::string, std::string, int, int>;
    static std::mutex mutex;
    static auto* const kLoaded = new std::map<Key, Kernel>;
    const Key key(cache_key(request), entry, dynamic_shared_bytes, device);
    {
        const std::lock_guard lock(mutex);
        if (const auto found = kLoaded->find(key); found != kLoaded->end()) return found->second;
    }
    const ContextScope scope(device);
    const Driver& cuda = driver();
    Kernel kernel;
    kernel.device = device;
    kernel.dynamic_shared_bytes = dynamic_shared_bytes;
    cuda.check(cuda.cuModuleGetFunction(&kernel.function, load_module(request),
                                        symbol_of(request, entry).c_str()),
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
