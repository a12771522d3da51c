// Owners of device memory, streams and events.
#pragma once

#include <cstddef>
#include <utility>

#include "cuda/runtime/device.h"

namespace tilewright::cuda {

/// Owned device memory, aligned to 256 bytes. Allocating throws CudaError when memory runs out.
class Buffer {
  public:
    Buffer() = default;
    Buffer(int device, std::size_t bytes);
    ~Buffer();
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }

    DeviceAddress address() const { return address_; }
    std::size_t bytes() const { return bytes_; }
    int device() const { return device_; }

    /// Copies `size` bytes to or from `offset` and waits for the copy. Not for use during capture.
    void upload(const void* source, std::size_t size, std::size_t offset = 0);
    void download(void* target, std::size_t size, std::size_t offset = 0) const;
    /// Sets every byte; waits.
    void fill(unsigned char value);

  private:
    void swap(Buffer& other) noexcept {
        std::swap(address_, other.address_);
        std::swap(bytes_, other.bytes_);
        std::swap(device_, other.device_);
    }
    void check_range(const char* action, std::size_t size, std::size_t offset) const;

    DeviceAddress address_ = 0;
    std::size_t bytes_ = 0;
    int device_ = 0;
};

/// An owned stream that does not synchronise with the legacy default stream.
class Stream {
  public:
    explicit Stream(int device);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    StreamHandle handle() const { return handle_; }
    /// Waits for all work submitted so far; throws the error of work that failed.
    void synchronize() const;

  private:
    StreamHandle handle_ = nullptr;
    int device_ = 0;
};

/// An owned event with a timestamp.
class Event {
  public:
    explicit Event(int device);
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    EventHandle handle() const { return handle_; }
    void record(StreamHandle stream);
    void synchronize() const;
    /// Milliseconds from `start` to this event; both must have completed.
    float milliseconds_since(const Event& start) const;

  private:
    EventHandle handle_ = nullptr;
    int device_ = 0;
};

}  // namespace tilewright::cuda
