// Runs CUDA handlers of custom calls under XLA's CPU client, on the stand-in GPU (tests/cuda/fake):
// operands are copied to its memory and results back. Built by fake_gpu.py.
#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace {

template <typename F>
F driver(const char* name) {
    static void* const kLibrary = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return reinterpret_cast<F>(dlsym(kLibrary, name));
}

/// Makes the first GPU current.
void enter() {
    void* context = nullptr;
    driver<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0);
    driver<int (*)(void*)>("cuCtxPushCurrent_v2")(context);
}

void leave() {
    driver<int (*)(void**)>("cuCtxPopCurrent_v2")(nullptr);
}

void* allocate(std::size_t bytes) {
    void* memory = nullptr;
    enter();
    driver<int (*)(void**, std::size_t)>("cuMemAlloc_v2")(&memory, bytes);
    leave();
    return memory;
}

void release(void* memory) {
    enter();
    driver<int (*)(void*)>("cuMemFree_v2")(memory);
    leave();
}

std::size_t bytes_of(const XLA_FFI_Buffer& buffer) {
    std::size_t bytes = 4;
    switch (buffer.dtype) {
        case XLA_FFI_DataType_PRED:
        case XLA_FFI_DataType_S8:
        case XLA_FFI_DataType_U8:
            bytes = 1;
            break;
        case XLA_FFI_DataType_F16:
        case XLA_FFI_DataType_BF16:
            bytes = 2;
            break;
        case XLA_FFI_DataType_S64:
        case XLA_FFI_DataType_U64:
        case XLA_FFI_DataType_F64:
            bytes = 8;
            break;
        default:
            break;
    }
    for (std::int64_t d = 0; d < buffer.rank; ++d) bytes *= buffer.dims[d];
    return bytes;
}

void* stream = nullptr;
int recording = 0, scratch = 0;

XLA_FFI_Error* get_stream(XLA_FFI_Stream_Get_Args* args) {
    args->stream = stream;
    return nullptr;
}
XLA_FFI_Error* get_device(XLA_FFI_DeviceOrdinal_Get_Args* args) {
    args->device_ordinal = 0;
    return nullptr;
}
XLA_FFI_Error* give_memory(XLA_FFI_DeviceMemory_Allocate_Args* args) {
    ++scratch;
    args->data = allocate(args->size);
    return nullptr;
}
XLA_FFI_Error* take_memory(XLA_FFI_DeviceMemory_Free_Args* args) {
    release(args->data);
    return nullptr;
}

/// The buffers of a call on the GPU; each host buffer is copied once.
class Buffers {
  public:
    ~Buffers() {
        for (const auto& [host, place] : places_) release(place.first);
    }
    XLA_FFI_Buffer* moved(const void* given) {
        XLA_FFI_Buffer buffer = *static_cast<const XLA_FFI_Buffer*>(given);
        const std::size_t bytes = bytes_of(buffer);
        auto& place = places_[buffer.data];
        if (place.first == nullptr) {
            place = {allocate(bytes), bytes};
            driver<int (*)(void*, const void*, std::size_t, void*)>("cuMemcpyHtoDAsync_v2")(
                place.first, buffer.data, bytes, nullptr);
        }
        buffer.data = place.first;
        buffers_.push_back(std::make_unique<XLA_FFI_Buffer>(buffer));
        return buffers_.back().get();
    }
    void copy_back() const {
        for (const auto& [host, place] : places_) {
            driver<int (*)(void*, const void*, std::size_t, void*)>("cuMemcpyDtoHAsync_v2")(
                host, place.first, place.second, nullptr);
        }
    }

  private:
    std::map<void*, std::pair<void*, std::size_t>> places_;
    std::vector<std::unique_ptr<XLA_FFI_Buffer>> buffers_;
};

XLA_FFI_Error* call(XLA_FFI_Handler* handler, XLA_FFI_CallFrame* given) {
    if (given->extension_start != nullptr) {  // a query about the handler
        XLA_FFI_Error* const error = handler(given);
        auto* const extension =
            reinterpret_cast<XLA_FFI_Metadata_Extension*>(given->extension_start);
        extension->metadata->traits = 0;  // the CPU has no command buffers
        return error;
    }
    XLA_FFI_Api api = *given->api;
    api.XLA_FFI_Stream_Get = get_stream;
    api.XLA_FFI_DeviceOrdinal_Get = get_device;
    api.XLA_FFI_DeviceMemory_Allocate = give_memory;
    api.XLA_FFI_DeviceMemory_Free = take_memory;
    XLA_FFI_CallFrame frame = *given;
    frame.api = &api;
    Buffers buffers;
    std::vector<void*> args, rets;
    for (std::int64_t i = 0; i < given->args.size; ++i) {
        args.push_back(buffers.moved(given->args.args[i]));
    }
    for (std::int64_t i = 0; i < given->rets.size; ++i) {
        rets.push_back(buffers.moved(given->rets.rets[i]));
    }
    frame.args.args = args.data();
    frame.rets.rets = rets.data();
    if (stream == nullptr) driver<int (*)(void**, unsigned)>("cuStreamCreate")(&stream, 0);
    if (recording) {
        driver<int (*)(void*, int)>("cuStreamBeginCapture_v2")(stream, 1);
    }
    XLA_FFI_Error* const error = handler(&frame);
    if (recording) {
        void *graph = nullptr, *runnable = nullptr;
        driver<int (*)(void*, void**)>("cuStreamEndCapture")(stream, &graph);
        driver<int (*)(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags")(&runnable,
                                                                                          graph, 0);
        // Twice, as a command buffer runs more than once.
        for (int i = 0; i < 2; ++i)
            driver<int (*)(void*, void*)>("cuGraphLaunch")(runnable, stream);
        driver<int (*)(void*)>("cuGraphExecDestroy")(runnable);
        driver<int (*)(void*)>("cuGraphDestroy")(graph);
    }
    if (error == nullptr) buffers.copy_back();
    return error;
}

constexpr int kSlots = 16;
std::array<XLA_FFI_Handler*, kSlots> handlers;
int used = 0;

template <int slot>
XLA_FFI_Error* run(XLA_FFI_CallFrame* frame) {
    return call(handlers[slot], frame);
}

template <int... slots>
XLA_FFI_Handler* runner(int slot, std::integer_sequence<int, slots...>) {
    static constexpr XLA_FFI_Handler* kRunners[] = {run<slots>...};
    return kRunners[slot];
}

}  // namespace

extern "C" {

/// A host handler that runs this CUDA handler on the stand-in GPU.
void* fake_gpu_handler(void* handler) {
    handlers.at(used) = reinterpret_cast<XLA_FFI_Handler*>(handler);
    return reinterpret_cast<void*>(runner(used++, std::make_integer_sequence<int, kSlots>()));
}

/// Sets whether the work of calls is recorded in a graph, which is then launched.
void fake_gpu_record(int on) {
    recording = on;
}

/// The number of blocks of GPU memory that the process holds.
int fake_gpu_blocks() {
    return driver<int (*)(int)>("cuFakeCount")(1);
}

/// How often calls took XLA's scratch memory.
int fake_gpu_scratch() {
    return scratch;
}
}
