// GPU memory for tensors: allocation with a cache, copies and the current stream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tilewright/run.h"
#include "tilewright/tensor.h"

namespace tilewright::run {

/// At least `bytes` of a GPU's memory: from the allocator of this thread's CudaScope, if it has
/// one, else from a cache per device and stream, so that work on the same stream reuses freed
/// memory without waiting. Memory taken during a capture is freed with the graph.
/// CudaError if memory runs out.
std::shared_ptr<void> allocate_on_gpu(std::int64_t bytes, int device);

/// Whether this thread's arrays belong to a framework, whose allocator its CudaScope has: it knows
/// where they are, and asking the driver costs microseconds a call.
bool is_told_addresses();

/// Contiguous copies of CPU tensors on a GPU, for what outlives the call: in memory of their own,
/// whatever allocator this thread's CudaScope has. Any stream may read them. Once the last copy is
/// gone the driver frees the memory, and waits for kernels that still read it.
std::vector<Tensor> own_copies(std::span<const Tensor> tensors, Device device);

/// Copies bytes between devices on the current stream; waits if one is the host.
void copy_memory(void* to, Device to_device, const void* from, Device from_device,
                 std::int64_t bytes);

/// Writes a few words on the current stream without waiting; graphs capture the values.
void write_words(void* memory, std::span<const std::uint32_t> words, int device);

/// A tensor of i64 values on a device, the same one for equal values. The first call on a GPU waits
/// for the copy.
Tensor constant(std::span<const std::int64_t> values, Device device);

/// Repeats a 32-bit pattern over memory on the current stream.
void fill_words(void* memory, std::uint32_t pattern, std::int64_t count, int device);

/// Copies elements between tensors of one shape on one GPU, with any strides and dtypes.
void copy_elements_on_gpu(const Tensor& target, const Tensor& source);

/// Sets bytes to zero on the current stream.
void clear_on_gpu(void* memory, std::int64_t bytes, int device);

}  // namespace tilewright::run
