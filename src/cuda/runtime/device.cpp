// Device properties, primary contexts, and the report of what was found.
#include "cuda/runtime/device.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "cuda/runtime/compiler.h"
#include "cuda/runtime/kernel_pack.h"
#include "support/check.h"

namespace tilewright::cuda {
namespace {

// CUdevice_attribute and CUpointer_attribute.
constexpr int kAttributeMultiprocessorCount = 16;
constexpr int kAttributeL2CacheSize = 38;
constexpr int kAttributeMajor = 75;
constexpr int kAttributeMinor = 76;
constexpr int kAttributeSharedPerBlockOptin = 97;
constexpr int kPointerDeviceOrdinal = 9;

std::vector<DeviceInfo> read_devices() {
    std::vector<DeviceInfo> devices;
    const Driver* cuda = find_driver();
    if (cuda == nullptr) return devices;
    int count = 0;
    cuda->check(cuda->cuDeviceGetCount(&count), "counting devices");
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        int device = 0;
        cuda->check(cuda->cuDeviceGet(&device, ordinal), "opening a device");
        const auto attribute = [&](int which) {
            int value = 0;
            cuda->check(cuda->cuDeviceGetAttribute(&value, which, device), "reading an attribute");
            return value;
        };
        DeviceInfo info;
        info.ordinal = ordinal;
        char name[256] = {};
        cuda->check(cuda->cuDeviceGetName(name, sizeof name, device), "reading a device name");
        info.name = name;
        info.major = attribute(kAttributeMajor);
        info.minor = attribute(kAttributeMinor);
        info.multiprocessors = attribute(kAttributeMultiprocessorCount);
        info.l2_bytes = static_cast<std::size_t>(attribute(kAttributeL2CacheSize));
        info.shared_bytes_per_block = attribute(kAttributeSharedPerBlockOptin);
        cuda->check(cuda->cuDeviceTotalMem_v2(&info.memory_bytes, device), "reading memory size");
        devices.push_back(std::move(info));
    }
    return devices;
}

const std::vector<DeviceInfo>& all_devices() {
    static const std::vector<DeviceInfo> kDevices = read_devices();
    return kDevices;
}

/// The primary context of a device, retained once for the life of the process.
ContextHandle primary_context(int ordinal) {
    static std::mutex mutex;
    static std::vector<ContextHandle> contexts;
    device_info(ordinal);
    const std::lock_guard lock(mutex);
    contexts.resize(all_devices().size(), nullptr);
    ContextHandle& context = contexts[ordinal];
    if (context == nullptr) {
        const Driver& cuda = driver();
        int device = 0;
        cuda.check(cuda.cuDeviceGet(&device, ordinal), "opening a device");
        cuda.check(cuda.cuDevicePrimaryCtxRetain(&context, device), "retaining a primary context");
    }
    return context;
}

std::string describe(const LibraryReport& report) {
    if (report.found())
        return fmt::format("{} {} ({})\n", report.name, report.version, report.path);
    return fmt::format("{}: not found\n  tried: {}\n  to get it: {}\n", report.name,
                       fmt::join(report.tried, "\n         "), report.advice);
}

/// The path at which the shell would find a program; empty when it would not.
std::string on_path(std::string_view program) {
    const char* const path = std::getenv("PATH");
    std::string_view rest = path != nullptr ? path : "";
    while (!rest.empty()) {
        const std::size_t end = std::min(rest.find(':'), rest.size());
        const std::string file = fmt::format("{}/{}", rest.substr(0, end), program);
        if (access(file.c_str(), X_OK) == 0) return file;
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return {};
}

}  // namespace

std::string DeviceInfo::arch() const {
    return fmt::format("sm_{}{}{}", major, minor, major >= 9 ? "a" : "");
}

int device_count() {
    return static_cast<int>(all_devices().size());
}

const DeviceInfo& device_info(int ordinal) {
    const std::vector<DeviceInfo>& devices = all_devices();
    if (ordinal < 0 || ordinal >= std::ssize(devices)) {
        driver();  // throws the reason
        user_error("cuda", "expected a device ordinal below {} but got {}", devices.size(),
                   ordinal);
    }
    return devices[ordinal];
}

ContextScope::ContextScope(int ordinal) {
    const ContextHandle context = primary_context(ordinal);
    driver().check(driver().cuCtxPushCurrent_v2(context), "entering a context");
}

ContextScope::~ContextScope() {
    ContextHandle popped = nullptr;
    driver().cuCtxPopCurrent_v2(&popped);
}

int device_of(DeviceAddress address, const char* argument) {
    int ordinal = -1;
    if (driver().cuPointerGetAttribute(&ordinal, kPointerDeviceOrdinal, address) != 0 ||
        ordinal < 0) {
        user_error("cuda", "{}: expected an address in device memory but got host address {:#x}",
                   argument, address);
    }
    return ordinal;
}

Probe probe() {
    return {driver_report(), nvrtc_report(), all_devices(), on_path("nvdisasm"),
            kernel_cache_folder().string()};
}

std::string Probe::text() const {
    std::string text = describe(driver) + describe(nvrtc);
    text += fmt::format("nvdisasm: {} (needed for dump --to sass only)\n",
                        nvdisasm.empty() ? "not found" : nvdisasm);
    if (!nvrtc.found()) {
        text += fmt::format("no NVRTC{}: CUDA kernels can be generated, not compiled or run\n",
                            devices.empty() ? ", no GPU" : "");
    } else if (devices.empty()) {
        text += "no GPU: CUDA kernels can be generated and compiled, not run\n";
    }
    for (const DeviceInfo& device : devices) {
        text += fmt::format("GPU {}: {}, {}, {} multiprocessors, {:.0f} GiB\n", device.ordinal,
                            device.name, device.arch(), device.multiprocessors,
                            static_cast<double>(device.memory_bytes) / (1 << 30));
    }
    const KernelPack& pack = installed_kernel_pack();
    text += pack.size() == 0 ? "kernels compiled with the library: none\n"
                             : fmt::format("kernels compiled with the library: {} in {}\n",
                                           pack.size(), pack.path().string());
    return text + fmt::format("kernel cache: {}\n", cache_folder);
}

}  // namespace tilewright::cuda
