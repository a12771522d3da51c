// Buffers, streams and events.
#include "cuda/runtime/memory.h"

#include <algorithm>

#include "cuda/runtime/stream.h"
#include "support/check.h"

namespace tilewright::cuda {
namespace {
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDefault = 0;
}  // namespace

Buffer::Buffer(int device, std::size_t bytes) : bytes_(bytes), device_(device) {
    if (bytes == 0) return;
    const DuringCapture allowed;  // whoever may not allocate for a capture says so itself
    const ContextScope scope(device);
    const int status = driver().cuMemAlloc_v2(&address_, bytes);
    if (status != 0) driver().check(status, fmt::format("allocating {} bytes", bytes).c_str());
}

Buffer::~Buffer() {
    if (address_ == 0) return;
    const DuringCapture allowed;
    const ContextScope scope(device_);
    driver().cuMemFree_v2(address_);
}

void Buffer::check_range(const char* action, std::size_t size, std::size_t offset) const {
    if (offset > bytes_ || size > bytes_ - offset) {
        user_error("cuda", "{}: expected at most {} bytes from offset {} but got {}", action,
                   bytes_ - std::min(offset, bytes_), offset, size);
    }
}

void Buffer::upload(const void* source, std::size_t size, std::size_t offset) {
    check_range("upload", size, offset);
    if (size == 0) return;
    const ContextScope scope(device_);
    const Driver& cuda = driver();
    cuda.check(cuda.cuMemcpyHtoDAsync_v2(address_ + offset, source, size, nullptr), "uploading");
    cuda.check(cuda.cuStreamSynchronize(nullptr), "uploading");
}

void Buffer::download(void* target, std::size_t size, std::size_t offset) const {
    check_range("download", size, offset);
    if (size == 0) return;
    const ContextScope scope(device_);
    const Driver& cuda = driver();
    cuda.check(cuda.cuMemcpyDtoHAsync_v2(target, address_ + offset, size, nullptr), "downloading");
    cuda.check(cuda.cuStreamSynchronize(nullptr), "downloading");
}

void Buffer::fill(unsigned char value) {
    if (bytes_ == 0) return;
    const ContextScope scope(device_);
    const Driver& cuda = driver();
    cuda.check(cuda.cuMemsetD8Async(address_, value, bytes_, nullptr), "filling");
    cuda.check(cuda.cuStreamSynchronize(nullptr), "filling");
}

Stream::Stream(int device) : device_(device) {
    const ContextScope scope(device);
    driver().check(driver().cuStreamCreate(&handle_, kStreamNonBlocking), "creating a stream");
}

Stream::~Stream() {
    const ContextScope scope(device_);
    driver().cuStreamDestroy_v2(handle_);
}

void Stream::synchronize() const {
    const ContextScope scope(device_);
    driver().check(driver().cuStreamSynchronize(handle_), "waiting for a stream");
}

Event::Event(int device) : device_(device) {
    const ContextScope scope(device);
    driver().check(driver().cuEventCreate(&handle_, kEventDefault), "creating an event");
}

Event::~Event() {
    const ContextScope scope(device_);
    driver().cuEventDestroy_v2(handle_);
}

void Event::record(StreamHandle stream) {
    const ContextScope scope(device_);
    driver().check(driver().cuEventRecord(handle_, stream), "recording an event");
}

void Event::synchronize() const {
    const ContextScope scope(device_);
    driver().check(driver().cuEventSynchronize(handle_), "waiting for an event");
}

float Event::milliseconds_since(const Event& start) const {
    float milliseconds = 0;
    driver().check(driver().cuEventElapsedTime(&milliseconds, start.handle_, handle_),
                   "reading an elapsed time");
    return milliseconds;
}

}  // namespace tilewright::cuda
