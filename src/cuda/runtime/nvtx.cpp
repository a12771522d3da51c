// The injection protocol of NVTX 3: a profiler names its library in NVTX_INJECTION64_PATH, and that
// library sets the functions that a table of this process points at.
#include "cuda/runtime/nvtx.h"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "support/debug_log.h"

namespace tilewright::cuda {
namespace {

using Function = void (*)();

// Constants of nvtxDetail/nvtxTypes.h.
constexpr std::uint32_t kTableCallbacks = 1, kTableVersion = 3;
constexpr std::size_t kModuleCore = 1, kRangePush = 9, kRangePop = 11;
// Functions per module: an unused first entry, core, CUDA, OpenCL, the CUDA runtime, core 2,
// synchronisation. CUPTI rejects a process in which one of them is missing or shorter.
constexpr std::array<unsigned, 7> kSizes = {0, 16, 9, 15, 7, 16, 7};

struct FunctionTable {
    std::array<Function, 16> functions{};  ///< set by the profiler
    std::array<Function*, 17> places{};    ///< where the profiler sets them; the last one is null
};

std::array<FunctionTable, kSizes.size()>& modules() {
    static std::array<FunctionTable, kSizes.size()> modules{};
    return modules;
}

int module_table(int module, Function*** table, unsigned* size) {
    if (module < 1 || module >= std::ssize(kSizes)) return 0;
    const std::size_t index = module;
    FunctionTable& found = modules()[index];
    for (std::size_t i = 1; i < kSizes[index]; ++i) found.places[i] = &found.functions[i];
    if (size != nullptr) *size = kSizes[index];
    if (table != nullptr) *table = found.places.data();
    return 1;
}

struct CallbackTable {
    std::size_t size = sizeof(CallbackTable);
    int (*module_table)(int, Function***, unsigned*) = &cuda::module_table;
};

struct VersionTable {
    std::size_t size = sizeof(VersionTable);
    std::uint32_t version = 3, reserved = 0;
    void (*set_version_of_injection)(std::uint32_t) = [](std::uint32_t) {};
};

const void* export_table(std::uint32_t id) {
    static const CallbackTable callbacks;
    static const VersionTable version;
    if (id == kTableCallbacks) return &callbacks;
    return id == kTableVersion ? static_cast<const void*>(&version) : nullptr;
}

struct Ranges {
    int (*push)(const char*) = nullptr;
    int (*pop)() = nullptr;
};

Ranges find_ranges() {
    const char* const path = std::getenv("NVTX_INJECTION64_PATH");
    if (path == nullptr || *path == '\0') return {};
    void* const library = dlopen(path, RTLD_LAZY);
    if (library == nullptr) {
        debug_log("nvtx", "no ranges, since NVTX_INJECTION64_PATH does not open: {}", dlerror());
        return {};
    }
    using Initialize = int (*)(const void* (*)(std::uint32_t));
    const auto initialize =
        reinterpret_cast<Initialize>(dlsym(library, "InitializeInjectionNvtx2"));
    if (initialize == nullptr) {
        debug_log("nvtx", "no ranges, since {} is no injection library of NVTX", path);
        return {};
    }
    const bool accepted = initialize(&export_table) != 0;
    const auto& core = modules()[kModuleCore].functions;
    if (!accepted || core[kRangePush] == nullptr || core[kRangePop] == nullptr) {
        debug_log("nvtx", "no ranges, since {} does not take them", path);
        return {};
    }
    return {reinterpret_cast<int (*)(const char*)>(core[kRangePush]),
            reinterpret_cast<int (*)()>(core[kRangePop])};
}

const Ranges& ranges() {
    static const Ranges ranges = find_ranges();
    return ranges;
}

}  // namespace

NvtxRange::NvtxRange(const char* name) {
    if (ranges().push != nullptr) ranges().push(name);
}

NvtxRange::~NvtxRange() {
    if (ranges().pop != nullptr) ranges().pop();
}

}  // namespace tilewright::cuda
