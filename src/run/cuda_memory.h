// Memory of GPUs for tensors: allocation with a cache, copies, the current stream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "tilewright/run.h"
#include "tilewright/tensor.h"

namespace tilewright::run {

/// At least `bytes` of a GPU's memory: from the allocator of this thread's CudaScope, if it has
/// one. Else freed memory is kept, per device and stream, and given out again to work on the same
/// stream, so that nothing has to wait; what is taken while a graph is captured stays the graph's.
/// CudaError when memory runs out.
std::shared_ptr<void> allocate_on_gpu(std::int64_t bytes, int device);

/// Until it ends, this thread's memory is Tilewright's own: for what outlives the call.
class OwnCudaMemory {
  public:
    OwnCudaMemory();
    ~OwnCudaMemory();
    OwnCudaMemory(const OwnCudaMemory&) = delete;
    OwnCudaMemory& operator=(const OwnCudaMemory&) = delete;

  private:
    CudaAllocator* callers_;
};

/// Copies bytes between devices on the current stream; waits where the host takes part.
void copy_memory(void* to, Device to_device, const void* from, Device from_device,
                 std::int64_t bytes);

/// Writes a few words on the current stream without waiting; graphs capture the values.
void write_words(void* memory, std::span<const std::uint32_t> words, int device);

/// i64 values on a device, the same tensor for equal values; kept until the process ends. The first
/// time on a GPU waits for the copy.
Tensor constant(std::span<const std::int64_t> values, Device device);

/// Repeats a 32-bit pattern over memory on the current stream.
void fill_words(void* memory, std::uint32_t pattern, std::int64_t count, int device);

/// Copies elements between tensors of one shape on one GPU, whatever their strides and dtypes.
void copy_elements_on_gpu(const Tensor& target, const Tensor& source);

/// Sets bytes to zero on the current stream.
void clear_on_gpu(void* memory, std::int64_t bytes, int device);

}  // namespace tilewright::run
