// A stand-in for the CUDA driver on machines without a GPU: host memory as device memory between
// guard bytes, launches that run emulated kernels (nvrtc.cpp) at once, graphs that replay captured
// work. It refuses what the driver refuses: host addresses, allocation and waiting during a
// capture, more memory than the card has.
//
// TW_FAKE_ARCH (80), TW_FAKE_DEVICES (2) and TW_FAKE_MEMORY (bytes) describe the GPUs. With
// TW_FAKE_EMPTY kernels do nothing, and cost nothing to compile; cuFakeCount returns what is held.
#include "cuda/runtime/driver.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

using tilewright::cuda::DeviceAddress;
constexpr int kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101,
              kInvalidImage = 200, kNotFound = 500, kCaptureUnsupported = 900;
constexpr std::size_t kGuard = 256;
constexpr int kGuardByte = 0x5a, kPoison = 0xff;

using Work = std::function<void()>;

struct Graph {
    std::vector<Work> work;
    std::vector<std::shared_ptr<void>> objects;  ///< of users
};
struct Stream {
    int device = 0;
    Graph* captured = nullptr;
};
struct Function {
    void (*run)(void**, const unsigned*, int, unsigned) = nullptr;
    /// For a user's kernel, with grid and block.
    void (*run_user)(void**, const unsigned*, const unsigned*, unsigned) = nullptr;
    const unsigned long* sizes = nullptr;
};
struct Block {
    std::size_t bytes = 0;
    int device = 0;
};

std::recursive_mutex mutex;
std::map<DeviceAddress, Block> blocks;  // keyed by the address after the guard
std::map<int, std::size_t> used;
int captures = 0;
thread_local int mode = 0;                  // capture mode; 2 is relaxed
thread_local bool inside_callback = false;  // which must not call the driver
thread_local std::vector<int> contexts;

std::size_t number(const char* name, std::size_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

const Block* block_of(DeviceAddress address) {
    auto after = blocks.upper_bound(address);
    if (after == blocks.begin()) return nullptr;
    const auto& [begin, block] = *std::prev(after);
    return address < begin + std::max<std::size_t>(block.bytes, 1) ? &block : nullptr;
}

/// Whether kernels are empty.
bool are_empty() {
    return std::getenv("TW_FAKE_EMPTY") != nullptr;
}
int modules = 0;  // loaded

bool forbidden() {
    return inside_callback || (captures > 0 && mode != 2);
}

/// Runs the work, or adds it to the graph that the stream is captured in.
int submit(void* stream, Work work) {
    const std::scoped_lock lock(mutex);
    auto* const target = static_cast<Stream*>(stream);
    if (target != nullptr && target->captured != nullptr) {
        target->captured->work.push_back(std::move(work));
    } else {
        work();
    }
    return kOk;
}

bool is_captured(void* stream) {
    return stream != nullptr && static_cast<Stream*>(stream)->captured != nullptr;
}

bool reaches(DeviceAddress address, std::size_t bytes) {
    const Block* const block = block_of(address);
    return block != nullptr && (bytes == 0 || block_of(address + bytes - 1) == block);
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
    return kOk;
}
int cuDriverGetVersion(int* version) {
    *version = 13000;
    return kOk;
}
int cuGetErrorName(int status, const char** name) {
    static const std::map<int, const char*> kNames = {
        {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
        {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE"},
        {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}};
    const auto found = kNames.find(status);
    *name = found == kNames.end() ? "CUDA_ERROR_UNKNOWN" : found->second;
    return kOk;
}
int cuGetErrorString(int status, const char** text) {
    *text = status == kOutOfMemory ? "out of memory" : "failure of the stand-in driver";
    return kOk;
}
int cuDeviceGetCount(int* count) {
    *count = static_cast<int>(number("TW_FAKE_DEVICES", 2));
    return kOk;
}
int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return kOk;
}
int cuDeviceGetName(char* name, int size, int) {
    std::snprintf(name, static_cast<std::size_t>(size), "stand-in GPU");
    return kOk;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    const int arch = static_cast<int>(number("TW_FAKE_ARCH", 80));
    static const std::map<int, int> kValues = {{13, 1000000}, {16, 4}, {38, 1 << 20}};
    if (attribute == 75 || attribute == 76) {
        *value = attribute == 75 ? arch / 10 : arch % 10;
    } else if (attribute == 97) {
        *value = (arch == 90 ? 227 : 163) * 1024;  // shared memory of a thread block
    } else {
        const auto found = kValues.find(attribute);
        if (found == kValues.end()) return kInvalidValue;
        *value = found->second;
    }
    return kOk;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
    *bytes = number("TW_FAKE_MEMORY", std::size_t{1} << 30);
    return kOk;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(device) + 1);
    return kOk;
}
int cuCtxPushCurrent_v2(void* context) {
    contexts.push_back(static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1);
    return kOk;
}
int cuCtxPopCurrent_v2(void**) {
    contexts.pop_back();
    return kOk;
}
int cuCtxGetDevice(int* device) {
    if (contexts.empty()) return kInvalidDevice;
    *device = contexts.back();
    return kOk;
}
int cuCtxSynchronize() {
    return captures > 0 ? kCaptureUnsupported : kOk;  // in every mode, and breaks the capture
}
int cuPointerGetAttribute(void* value, int attribute, DeviceAddress address) {
    const std::scoped_lock lock(mutex);
    const Block* const block = block_of(address);
    if (attribute != 9 || block == nullptr) return kInvalidValue;
    *static_cast<int*>(value) = block->device;
    return kOk;
}
int cuMemAlloc_v2(DeviceAddress* address, std::size_t bytes) {
    const std::scoped_lock lock(mutex);
    if (forbidden()) return kCaptureUnsupported;
    if (contexts.empty()) return kInvalidDevice;
    const int device = contexts.back();
    if (used[device] + bytes > number("TW_FAKE_MEMORY", std::size_t{1} << 30)) return kOutOfMemory;
    const std::size_t all = (bytes + 2 * kGuard + 255) / 256 * 256;
    auto* const memory = static_cast<char*>(std::aligned_alloc(256, all));
    std::memset(memory, kGuardByte, all);
    std::memset(memory + kGuard, kPoison, bytes);
    *address = reinterpret_cast<DeviceAddress>(memory + kGuard);
    blocks[*address] = {bytes, device};
    used[device] += bytes;
    return kOk;
}
int cuMemFree_v2(DeviceAddress address) {
    const std::scoped_lock lock(mutex);
    if (forbidden()) return kCaptureUnsupported;
    const auto found = blocks.find(address);
    if (found == blocks.end()) return kInvalidValue;
    auto* const memory = reinterpret_cast<char*>(address);
    for (std::size_t i = 0; i < kGuard; ++i) {
        if (memory[-1 - static_cast<std::ptrdiff_t>(i)] != kGuardByte ||
            memory[found->second.bytes + i] != kGuardByte) {
            std::fprintf(stderr, "a kernel wrote outside of its array\n");
            std::abort();
        }
    }
    used[found->second.device] -= found->second.bytes;
    std::free(memory - kGuard);
    blocks.erase(found);
    return kOk;
}
int cuMemcpyHtoDAsync_v2(DeviceAddress target, const void* source, std::size_t bytes,
                         void* stream) {
    if (is_captured(stream) || !reaches(target, bytes)) {
        return is_captured(stream) ? kCaptureUnsupported : kInvalidValue;
    }
    std::memcpy(reinterpret_cast<void*>(target), source, bytes);
    return kOk;
}
int cuMemcpyDtoHAsync_v2(void* target, DeviceAddress source, std::size_t bytes, void* stream) {
    if (is_captured(stream) || !reaches(source, bytes)) {
        return is_captured(stream) ? kCaptureUnsupported : kInvalidValue;
    }
    std::memcpy(target, reinterpret_cast<void*>(source), bytes);
    return kOk;
}
int cuMemcpyDtoDAsync_v2(DeviceAddress target, DeviceAddress source, std::size_t bytes,
                         void* stream) {
    if (!reaches(target, bytes) || !reaches(source, bytes)) return kInvalidValue;
    return submit(stream, [=] {
        std::memmove(reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), bytes);
    });
}
int cuMemsetD8Async(DeviceAddress target, unsigned char value, std::size_t bytes, void* stream) {
    if (!reaches(target, bytes)) return kInvalidValue;
    return submit(stream, [=] { std::memset(reinterpret_cast<void*>(target), value, bytes); });
}
int cuMemsetD32Async(DeviceAddress target, unsigned value, std::size_t count, void* stream) {
    if (!reaches(target, 4 * count)) return kInvalidValue;
    return submit(stream, [=] { std::fill_n(reinterpret_cast<unsigned*>(target), count, value); });
}
int cuStreamCreate(void** stream, unsigned) {
    *stream = new Stream{contexts.empty() ? 0 : contexts.back()};
    return kOk;
}
int cuStreamDestroy_v2(void* stream) {
    delete static_cast<Stream*>(stream);
    return kOk;
}
int cuStreamSynchronize(void* stream) {
    return is_captured(stream) ? kCaptureUnsupported : kOk;
}
int cuStreamWaitEvent(void*, void*, unsigned) {
    return kOk;
}
int cuStreamGetCtx(void* stream, void** context) {
    return cuDevicePrimaryCtxRetain(context, static_cast<Stream*>(stream)->device);
}
int cuStreamIsCapturing(void* stream, int* status) {
    *status = is_captured(stream) ? 1 : 0;
    return kOk;
}
int cuStreamGetCaptureInfo_v2(void* stream, int* status, std::uint64_t*, void** graph, const void**,
                              std::size_t*) {
    *status = is_captured(stream) ? 1 : 0;
    *graph = static_cast<Stream*>(stream)->captured;
    return kOk;
}
int cuUserObjectCreate(void** object, void* kept, void (*destroy)(void*), unsigned, unsigned) {
    *object = new std::shared_ptr<void>(kept, [destroy](void* gone) {
        inside_callback = true;
        destroy(gone);
        inside_callback = false;
    });
    return kOk;
}
int cuGraphRetainUserObject(void* graph, void* object, unsigned, unsigned) {
    if (graph == nullptr) return kInvalidValue;
    const std::unique_ptr<std::shared_ptr<void>> moved(static_cast<std::shared_ptr<void>*>(object));
    static_cast<Graph*>(graph)->objects.push_back(*moved);
    return kOk;
}
int cuThreadExchangeStreamCaptureMode(int* given) {
    std::swap(mode, *given);
    return kOk;
}
int cuStreamBeginCapture_v2(void* stream, int) {
    const std::scoped_lock lock(mutex);
    if (stream == nullptr || is_captured(stream)) return kInvalidValue;
    static_cast<Stream*>(stream)->captured = new Graph;
    ++captures;
    return kOk;
}
int cuStreamEndCapture(void* stream, void** graph) {
    const std::scoped_lock lock(mutex);
    auto* const target = static_cast<Stream*>(stream);
    *graph = std::exchange(target->captured, nullptr);
    --captures;
    return kOk;
}
int cuGraphInstantiateWithFlags(void** runnable, void* graph, unsigned long long) {
    *runnable = new Graph(*static_cast<Graph*>(graph));
    return kOk;
}
int cuGraphLaunch(void* runnable, void* stream) {
    for (const Work& work : static_cast<Graph*>(runnable)->work) submit(stream, work);
    return kOk;
}
int cuGraphExecDestroy(void* runnable) {
    delete static_cast<Graph*>(runnable);
    return kOk;
}
int cuGraphDestroy(void* graph) {
    delete static_cast<Graph*>(graph);
    return kOk;
}
int cuEventCreate(void** event, unsigned) {
    *event = event;
    return kOk;
}
int cuEventDestroy_v2(void*) {
    return kOk;
}
int cuEventRecord(void*, void*) {
    return kOk;
}
int cuEventSynchronize(void*) {
    return kOk;
}
int cuEventElapsedTime(float* milliseconds, void*, void*) {
    *milliseconds = 1;
    return kOk;
}
int cuModuleLoadData(void** module, const void* image) {
    if (forbidden()) return kCaptureUnsupported;
    const auto* const header = static_cast<const Elf64_Ehdr*>(image);
    if (std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_type != ET_DYN) {
        return kInvalidImage;
    }
    if (are_empty()) {
        const std::scoped_lock lock(mutex);
        *module = new Function{.run = [](void**, const unsigned*, int, unsigned) {},
                               .run_user = nullptr,
                               .sizes = new unsigned long(0)};
        ++modules;
        return kOk;
    }
    const std::size_t bytes = header->e_shoff + std::size_t{header->e_shnum} * header->e_shentsize;
    static int count = 0;
    const std::string file = (std::filesystem::temp_directory_path() /
                              fmt::format("tw_fake_module_{}_{}.so", ::getpid(), count++))
                                 .string();
    std::ofstream(file, std::ios::binary)
        .write(static_cast<const char*>(image), static_cast<std::streamsize>(bytes));
    *module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    std::filesystem::remove(file);
    return *module == nullptr ? kInvalidImage : kOk;
}
int cuModuleUnload(void* module) {
    if (!are_empty()) return kOk;
    if (forbidden()) return kCaptureUnsupported;
    const std::scoped_lock lock(mutex);
    delete static_cast<Function*>(module)->sizes;
    delete static_cast<Function*>(module);
    --modules;
    return kOk;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    if (are_empty()) {
        *function = module;
        return kOk;
    }
    auto made = std::make_unique<Function>();
    made->run = reinterpret_cast<decltype(Function::run)>(
        dlsym(module, fmt::format("run_{}", name).c_str()));
    made->sizes =
        static_cast<const unsigned long*>(dlsym(module, fmt::format("sizes_{}", name).c_str()));
    made->run_user = reinterpret_cast<decltype(Function::run_user)>(
        dlsym(module, fmt::format("run_user_{}", name).c_str()));
    const bool runs = made->run != nullptr || made->run_user != nullptr;
    if (!runs || made->sizes == nullptr) return kNotFound;
    *function = made.release();
    return kOk;
}
int cuFuncSetAttribute(void*, int, int) {
    return kOk;
}
int cuFuncGetAttribute(int* value, int, void*) {
    *value = 0;
    return kOk;
}
int cuOccupancyMaxActiveClusters(int* clusters, void*, const void*) {
    *clusters = 2;
    return kOk;
}
int cuLaunchKernelEx(const void* config, void* function, void** parameters, void**) {
    struct Attribute {
        int id, pad;
        unsigned value[16];
    };
    struct Config {
        unsigned grid[3], block[3], shared_bytes;
        void* stream;
        const Attribute* attributes;
        unsigned attribute_count;
    };
    constexpr int kCluster = 4;
    Config launch = *static_cast<const Config*>(config);
    // Emulated kernels take the size of clusters here.
    const bool in_clusters = launch.attribute_count == 1 && launch.attributes[0].id == kCluster;
    if (in_clusters && static_cast<const Function*>(function)->run_user == nullptr) {
        launch.grid[2] = launch.attributes[0].value[0];
    }
    const auto& kernel = *static_cast<const Function*>(function);
    // Graphs store the values of the parameters.
    auto values = std::make_shared<std::vector<std::vector<std::max_align_t>>>();
    for (std::size_t i = 0; kernel.sizes[i] != 0; ++i) {
        values->emplace_back(kernel.sizes[i] / sizeof(std::max_align_t) + 1);
        std::memcpy(values->back().data(), parameters[i], kernel.sizes[i]);
    }
    return submit(launch.stream, [values, kernel, launch] {
        static unsigned seed = 0;
        std::vector<void*> pointers;
        for (auto& value : *values) pointers.push_back(value.data());
        if (kernel.run_user != nullptr) {
            kernel.run_user(pointers.data(), launch.grid, launch.block, ++seed);
        } else {
            kernel.run(pointers.data(), launch.grid, static_cast<int>(launch.block[0]), ++seed);
        }
    });
}
int cuTensorMapEncodeTiled(void* to, int dtype, std::uint32_t rank, void* address,
                           const std::uint64_t* extents, const std::uint64_t* strides,
                           const std::uint32_t* box, const std::uint32_t*, int, int, int, int) {
    // The layout in the emulator's tma.cuh; strides begin with the second dimension.
    struct Map {
        void* data;
        long extent[5], stride[5];
        int box[5], rank, bytes;
    };
    constexpr int kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};  // by CUtensorMapDataType
    Map map{};
    map.data = address;
    map.rank = static_cast<int>(rank);
    map.bytes = kBytes[dtype];
    for (int d = 0; d < map.rank; ++d) {
        map.extent[d] = static_cast<long>(extents[d]);
        map.stride[d] = d == 0 ? map.bytes : static_cast<long>(strides[d - 1]);
        map.box[d] = static_cast<int>(box[d]);
    }
    std::memcpy(to, &map, sizeof map);
    return kOk;
}
/// The number of modules (0) or blocks of memory (1) that the process holds.
int cuFakeCount(int what) {
    const std::scoped_lock lock(mutex);
    return what == 0 ? modules : static_cast<int>(blocks.size());
}

}  // extern "C"
