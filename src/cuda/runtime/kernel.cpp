// Loading cubins and launching kernels.
#include "cuda/runtime/kernel.h"

#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/runtime/cubin.h"
#include "cuda/runtime/graph.h"
#include "cuda/runtime/launch_config.h"
#include "cuda/runtime/launches.h"
#include "cuda/runtime/nvtx.h"
#include "cuda/runtime/stream.h"
#include "support/check.h"
#include "support/disk_cache.h"
#include "support/memo.h"

namespace tilewright::cuda {

namespace {

/// Modules that nobody holds any more. Unloading waits for running kernels, so it happens when the
/// next modules are loaded.
struct Unused {
    std::mutex mutex;
    std::vector<std::pair<ModuleHandle, int>> modules;  // with their devices
};
Unused& unused() {
    static auto* const kUnused = new Unused;
    return *kUnused;
}

// CUfunction_attribute.
constexpr int kFunctionLocalBytes = 3;
constexpr int kFunctionRegisters = 4;
constexpr int kFunctionDynamicShared = 8;

thread_local std::uint64_t launched = 0;

/// Unloads unused modules once there are many: each batch waits for the GPU, by the driver's own
/// doing. To wait for the whole context would break the captures of other threads.
void unload_unused() {
    constexpr std::size_t kAtOnce = 64;
    std::vector<std::pair<ModuleHandle, int>> modules;
    {
        const std::scoped_lock lock(unused().mutex);
        if (unused().modules.size() < kAtOnce) return;
        modules.swap(unused().modules);
    }
    for (const auto& [module, device] : modules) {
        const ContextScope scope(device);
        driver().cuModuleUnload(module);  // fails only in a context that is lost
    }
}

ModuleHandle load_module(const CompileRequest& request) {
    const Driver& cuda = driver();
    ModuleHandle module = nullptr;
    if (cuda.cuModuleLoadData(&module, cubin_of(request)->data()) == 0) return module;
    // The cubin may come from a damaged or foreign cache: compile it afresh, once.
    forget_cubin(request);
    cuda.check(cuda.cuModuleLoadData(&module, cubin_of(request)->data()), "loading a kernel");
    return module;
}

/// Loads a kernel: `load` returns its module, identified by `identity`, and its symbol there.
template <typename Load>
Kernel load_entry(const std::string& name, const std::string& identity, const char* entry,
                  int dynamic_shared_bytes, int device, const Load& load) {
    const DeviceInfo& info = device_info(device);
    if (dynamic_shared_bytes > info.shared_bytes_per_block) {
        user_error("cuda", "{}: expected at most {} bytes of shared memory on {} but got {}", name,
                   info.shared_bytes_per_block, info.name, dynamic_shared_bytes);
    }
    // A kernel that somebody holds is not loaded again.
    struct Entry {
        std::weak_ptr<Module> module;
        Kernel kernel;  // without its module
    };
    using Key = std::tuple<std::string, std::string, int, int>;
    static auto* const kLoaded = new Memo<Key, Entry>("loaded kernels", kWhileAlive);
    const auto loaded = [&](const Entry& known) {
        Kernel kernel = known.kernel;
        kernel.module = known.module.lock();
        return kernel;
    };
    const Key key(identity, entry, dynamic_shared_bytes, device);
    if (const std::optional<Entry> known = kLoaded->find(key)) {
        if (Kernel kernel = loaded(*known); kernel.module != nullptr) return kernel;
    }
    kLoaded->take_if([](const Key&, const Entry& known) { return known.module.expired(); });
    // Frameworks capture the first execution of a program, too. Loading a module allocates.
    const DuringCapture loading;
    if (!is_capturing()) {
        drop_gone_graphs();
        unload_unused();
    }
    const ContextScope scope(device);
    const Driver& cuda = driver();
    Kernel kernel;
    const auto [module, symbol] = load();
    kernel.module = std::make_shared<Module>(module, device);
    kernel.name = std::make_shared<const std::string>(name.substr(0, name.rfind(".cu")));
    kernel.device = device;
    kernel.dynamic_shared_bytes = dynamic_shared_bytes;
    cuda.check(cuda.cuModuleGetFunction(&kernel.function, module, symbol.c_str()),
               "finding a kernel");
    cuda.check(
        cuda.cuFuncSetAttribute(kernel.function, kFunctionDynamicShared, dynamic_shared_bytes),
        "reserving shared memory");
    cuda.check(cuda.cuFuncGetAttribute(&kernel.registers, kFunctionRegisters, kernel.function),
               "reading a kernel's registers");
    cuda.check(cuda.cuFuncGetAttribute(&kernel.local_bytes, kFunctionLocalBytes, kernel.function),
               "reading a kernel's stack");
    Entry made{kernel.module, kernel};
    made.kernel.module.reset();
    // If another thread was first and its kernel is still held, use that one.
    Kernel other = loaded(kLoaded->put(key, std::move(made)));
    return other.module != nullptr ? other : kernel;
}

}  // namespace

class Module {
  public:
    Module(ModuleHandle handle, int device) : handle_(handle), device_(device) {}
    ~Module() {
        const std::scoped_lock lock(unused().mutex);
        unused().modules.emplace_back(handle_, device_);
    }
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;

    ModuleHandle handle() const { return handle_; }

  private:
    ModuleHandle handle_;
    int device_;
};

Kernel load_kernel(const CompileRequest& request, const char* entry, int dynamic_shared_bytes,
                   int device) {
    return load_entry(request.name, source_key(request), entry, dynamic_shared_bytes, device, [&] {
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
    LaunchAttribute cluster{};
    LaunchConfig config = config_of(kernel, shape, cluster);
    config.stream = stream;
    const NvtxRange range(kernel.name->c_str());
    const ContextScope scope(kernel.device);
    if (is_capturing(stream)) keep_for_graph(stream, kernel.module);
    driver().check(driver().cuLaunchKernelEx(&config, kernel.function,
                                             const_cast<void**>(parameters.data()), nullptr),
                   "launching a kernel");
    ++launched;
}

std::uint64_t launched_by_thread() {
    return launched;
}

}  // namespace tilewright::cuda
