// The injection protocol of NVTX 3: a profiler names its library in NVTX_INJECTION64_PATH, and that
// library fills in the functions that a table of this process points at.
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

// Numbers and tables of nvtxDetail/nvtxTypes.h.
constexpr std::uint32_t kTableCallbacks = 1, kTableVersion = 3;
constexpr int kModuleCore = 1;
constexpr std::size_t kRangePush = 9, kRangePop = 11, kCoreFunctions = 16;

/// The functions of the core module, which a profiler sets; the first place is none.
std::array<Function, kCoreFunctions>& functions() {
    static std::array<Function, kCoreFunctions> functions{};
    return functions;
}

int module_table(int module, Function*** table, unsigned* size) {
    static std::array<Function*, kCoreFunctions + 1> places = [] {
        std::array<Function*, kCoreFunctions + 1> result{};
        for (std::size_t i = 1; i < kCoreFunctions; ++i) result[i] = &functions()[i];
        return result;
    }();
    if (module != kModuleCore) return 0;
    if (size != nullptr) *size = kCoreFunctions;
    if (table != nullptr) *table = places.data();
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
    if (initialize == nullptr || initialize(&export_table) == 0) {
        debug_log("nvtx", "no ranges, since {} is no injection library of NVTX", path);
        return {};
    }
    return {reinterpret_cast<int (*)(const char*)>(functions()[kRangePush]),
            reinterpret_cast<int (*)()>(functions()[kRangePop])};
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
