// GPU memory for tensors.
#include "run/cuda_memory.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/runtime/device.h"
#include "cuda/runtime/graph.h"
#include "cuda/runtime/memory.h"
#include "cuda/runtime/stream.h"
#include "run/recorder.h"
#include "run/scratch.h"
#include "support/check.h"
#include "support/memo.h"
#include "tilewright/run.h"

namespace tilewright {
namespace {

thread_local CudaAllocator* allocator_of_thread = nullptr;

}  // namespace

void set_cuda_stream(void* stream) {
    cuda::set_current_stream(stream);
}
void* cuda_stream() {
    return cuda::current_stream();
}

CudaScope::CudaScope(void* stream, CudaAllocator allocate)
    : allocate_(std::move(allocate)), stream_(cuda_stream()), outer_(allocator_of_thread) {
    set_cuda_stream(stream);
    if (allocate_) allocator_of_thread = &allocate_;
}

CudaScope::~CudaScope() {
    set_cuda_stream(stream_);
    allocator_of_thread = outer_;
}

void wait_for_cuda_stream(void* consumer, Device device) {
    if (device.kind == Device::Kind::cpu || consumer == cuda_stream()) return;
    cuda::Event done(device.index);
    done.record(cuda_stream());
    const cuda::ContextScope scope(device.index);
    cuda::driver().check(cuda::driver().cuStreamWaitEvent(consumer, done.handle(), 0),
                         "letting a stream wait");
}

void synchronize(Device device) {
    if (device.kind == Device::Kind::cpu) return;
    const cuda::ContextScope scope(device.index);
    cuda::driver().check(cuda::driver().cuStreamSynchronize(cuda_stream()), "waiting for a stream");
}

namespace run {
namespace {

/// Unused buffers of a stream by size class.
class UnusedBuffers {
  public:
    std::unique_ptr<cuda::Buffer> take(std::size_t size) {
        const std::scoped_lock lock(mutex_);
        const auto found = by_size_.find(size);
        if (found == by_size_.end() || found->second.empty()) return nullptr;
        auto buffer = std::move(found->second.back());
        found->second.pop_back();
        return buffer;
    }
    void give(std::unique_ptr<cuda::Buffer> buffer) {
        const std::scoped_lock lock(mutex_);
        by_size_[buffer->bytes()].push_back(std::move(buffer));
    }
    std::size_t bytes() const {
        const std::scoped_lock lock(mutex_);
        std::size_t sum = 0;
        for (const auto& [size, buffers] : by_size_) sum += size * buffers.size();
        return sum;
    }

  private:
    mutable std::mutex mutex_;
    std::map<std::size_t, std::vector<std::unique_ptr<cuda::Buffer>>> by_size_;
};

/// Unused buffers by device and stream. Nobody tells of streams that are destroyed: the driver gets
/// the buffers of those that were used least recently, and waits for what still runs there. Never
/// destroyed: tensors with static storage may outlive every other object.
using StreamKey = std::pair<int, void*>;
using Cache = Memo<StreamKey, std::shared_ptr<UnusedBuffers>>;
Cache& cache() {
    constexpr std::size_t kMostStreams = 64;
    static auto* const kCache =
        new Cache("unused memory of GPUs by stream", kMostStreams,
                  [](const std::shared_ptr<UnusedBuffers>& unused) { return unused->bytes(); });
    return *kCache;
}

/// Sizes are rounded up to eighths of a power of two, so that similar tensors share buffers.
std::size_t size_class(std::size_t bytes) {
    std::size_t step = 512;
    while (step * 16 < bytes) step *= 2;
    return (std::max<std::size_t>(bytes, 1) + step - 1) / step * step;
}

/// A new buffer; the cache gives up its own if the GPU has no more memory.
std::unique_ptr<cuda::Buffer> new_buffer(int device, std::size_t bytes) {
    try {
        return std::make_unique<cuda::Buffer>(device, bytes);
    } catch (const CudaError&) {
        cache().take_if([&](const StreamKey& key, const auto&) { return key.first == device; });
        return std::make_unique<cuda::Buffer>(device, bytes);
    }
}

/// Memory from the cache, which gets it back when the pointer is gone.
std::shared_ptr<void> take(std::int64_t bytes, int device) {
    const StreamKey key{device, cuda_stream()};
    const std::size_t size = size_class(static_cast<std::size_t>(bytes));
    cuda::device_info(device);  // UserError if there is no such GPU
    const std::shared_ptr<UnusedBuffers> unused =
        cache().get(key, [] { return std::make_shared<UnusedBuffers>(); });
    std::unique_ptr<cuda::Buffer> buffer = unused->take(size);
    if (!buffer) buffer = new_buffer(device, size);
    void* const memory = reinterpret_cast<void*>(buffer->address());
    return {memory, [key, kept = buffer.release()](void*) {
                std::unique_ptr<cuda::Buffer> given(kept);
                if (const auto still = cache().find(key)) (*still)->give(std::move(given));
            }};
}

}  // namespace

std::shared_ptr<void> allocate_on_gpu(std::int64_t bytes, int device) {
    if (allocator_of_thread) {
        std::shared_ptr<void> memory = (*allocator_of_thread)(bytes);
        if (memory || bytes == 0) return memory;
        user_error("allocate", "expected {} bytes of GPU memory from the caller but got none",
                   bytes);
    }
    return cached_cuda_memory(bytes, device);
}

Tensor scratch(std::int64_t bytes, Device device) {
    constexpr std::int64_t kMostOwn = std::int64_t{4} << 20;
    if (bytes == 0) return {};
    // A graph has memory of the caller.
    if (device.kind == Device::Kind::cpu || bytes > kMostOwn || cuda::is_capturing())
        return Tensor::empty(u8, {bytes}, device);
    std::shared_ptr<void> memory;
    try {
        memory = cached_cuda_memory(bytes, device.index);
    } catch (const CudaError&) {  // the caller's allocator may hold what is left
        return Tensor::empty(u8, {bytes}, device);
    }
    void* const address = memory.get();
    const Tensor result = Tensor::from_data(address, u8, {bytes}, {}, std::move(memory), device);
    if (Recorder* const recorder = Recorder::current()) recorder->allocated(result);
    return result;
}

bool is_told_addresses() {
    return allocator_of_thread != nullptr;
}

std::vector<Tensor> own_copies(std::span<const Tensor> tensors, Device device) {
    constexpr std::size_t kAlignment = 256;
    std::vector<std::size_t> places;
    std::size_t bytes = 0;
    for (const Tensor& tensor : tensors) {
        places.push_back(bytes);
        bytes +=
            (static_cast<std::size_t>(tensor.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
    }
    const std::shared_ptr<cuda::Buffer> buffer = new_buffer(device.index, bytes);
    std::vector<Tensor> copies;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const Tensor source = tensors[i].contiguous();
        void* const memory = reinterpret_cast<void*>(buffer->address() + places[i]);
        copy_memory(memory, device, source.raw(), source.device(), source.nbytes());
        copies.push_back(
            Tensor::from_data(memory, source.dtype(), source.shape(), {}, buffer, device));
    }
    return copies;
}

void copy_memory(void* to, Device to_device, const void* from, Device from_device,
                 std::int64_t bytes) {
    if (bytes == 0) return;
    interrupt_recording();
    const bool to_gpu = to_device.kind == Device::Kind::cuda,
               from_gpu = from_device.kind == Device::Kind::cuda;
    TW_ASSERT(to_gpu || from_gpu);
    if (!to_gpu || !from_gpu) {
        cuda::expect_no_capture("copy_from", "copies between host and GPU to be done");
    }
    const cuda::Driver& driver = cuda::driver();
    const auto target = reinterpret_cast<std::uintptr_t>(to),
               source = reinterpret_cast<std::uintptr_t>(from);
    if (to_gpu) cuda::device_of(target, "copy_from");
    if (from_gpu) cuda::device_of(source, "copy_from");
    const cuda::ContextScope scope(to_gpu ? to_device.index : from_device.index);
    const std::size_t size = bytes;
    void* const stream = cuda_stream();
    if (to_gpu && from_gpu) {
        driver.check(driver.cuMemcpyDtoDAsync_v2(target, source, size, stream), "copying");
        return;
    }
    driver.check(to_gpu ? driver.cuMemcpyHtoDAsync_v2(target, from, size, stream)
                        : driver.cuMemcpyDtoHAsync_v2(to, source, size, stream),
                 "copying");
    driver.check(driver.cuStreamSynchronize(stream), "copying");
}

void write_words(void* memory, std::span<const std::uint32_t> words, int device) {
    interrupt_recording();
    const cuda::ContextScope scope(device);
    const cuda::Driver& driver = cuda::driver();
    for (std::size_t i = 0; i < words.size(); ++i) {
        driver.check(driver.cuMemsetD32Async(reinterpret_cast<std::uintptr_t>(memory) + 4 * i,
                                             words[i], 1, cuda_stream()),
                     "writing");
    }
}

Tensor constant(std::span<const std::int64_t> values, Device device) {
    using Key = std::tuple<Device::Kind, int, std::vector<std::int64_t>>;
    constexpr std::size_t kMost = 1024;  // offsets of packed sequences may be new in every call
    static auto* const kConstants =
        new Memo<Key, Tensor>("small arrays of calls", kMost,
                              [](const Tensor& x) { return static_cast<std::size_t>(x.nbytes()); });
    const std::vector<std::int64_t> words(values.begin(), values.end());
    const auto count = std::ssize(words);
    const Tensor result = kConstants->get({device.kind, device.index, words}, [&] {
        if (device.kind == Device::Kind::cpu) {
            const RecorderScope paused(nullptr);
            return Tensor::from_vector(words, {count});
        }
        cuda::expect_no_capture("call", "small arrays to be on the GPU");
        auto buffer = std::make_shared<cuda::Buffer>(device.index, values.size_bytes());
        void* const memory = reinterpret_cast<void*>(buffer->address());
        copy_memory(memory, device, values.data(), Device{},
                    static_cast<std::int64_t>(values.size_bytes()));
        return Tensor::from_data(memory, i64, {count}, {}, std::move(buffer), device);
    });
    if (device.kind == Device::Kind::cuda && cuda::is_capturing()) {
        cuda::keep_for_graph(cuda_stream(), std::make_shared<const Tensor>(result));
    }
    return result;
}

void fill_words(void* memory, std::uint32_t pattern, std::int64_t count, int device) {
    if (count == 0) return;
    interrupt_recording();
    const cuda::ContextScope scope(device);
    const cuda::Driver& driver = cuda::driver();
    driver.check(driver.cuMemsetD32Async(reinterpret_cast<std::uintptr_t>(memory), pattern,
                                         static_cast<std::size_t>(count), cuda_stream()),
                 "filling");
}

void clear_on_gpu(void* memory, std::int64_t bytes, int device) {
    if (bytes == 0) return;
    interrupt_recording();
    const cuda::ContextScope scope(device);
    const cuda::Driver& driver = cuda::driver();
    driver.check(driver.cuMemsetD8Async(reinterpret_cast<std::uintptr_t>(memory), 0,
                                        static_cast<std::size_t>(bytes), cuda_stream()),
                 "clearing");
}

}  // namespace run

bool is_cuda_recording() {
    return cuda::is_capturing();
}

std::shared_ptr<void> cached_cuda_memory(std::int64_t bytes, int device) {
    cuda::drop_gone_graphs();
    if (!cuda::is_capturing()) return run::take(bytes, device);
    // The graph may write to it at every launch, so it is the graph's own.
    cuda::device_info(device);  // UserError if there is no such GPU
    const std::shared_ptr<cuda::Buffer> buffer =
        run::new_buffer(device, run::size_class(static_cast<std::size_t>(bytes)));
    cuda::keep_for_graph(cuda_stream(), buffer);
    return {buffer, reinterpret_cast<void*>(buffer->address())};
}

}  // namespace tilewright
