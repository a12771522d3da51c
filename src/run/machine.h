// What operations ask of a machine before they choose how to use it: `run` looks into cpu/ and
// cuda/ for them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tilewright::run {

/// Runs body(i) for i in [0, n), each exactly once, on the CPU's threads, and returns when all are
/// done.
void parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& body);

/// Shared memory that a thread block of a GPU may have. UserError where there is no such GPU.
int shared_bytes_per_block(int device);

/// Multiprocessors of a GPU. UserError where there is no such GPU.
int multiprocessors(int device);

/// What kernels of a GPU are compiled for: "sm_90a". UserError where there is no such GPU.
std::string arch(int device);

/// The GPU whose memory an address is in. UserError naming `argument` for a host address.
int gpu_of(const void* address, const char* argument);

/// True while work of this thread's stream is recorded for a CUDA graph.
bool is_capturing();

/// UserError while this thread's stream is captured: `what` would allocate or wait.
void expect_no_capture(std::string_view operation, std::string_view what);

/// UserError unless this thread's stream belongs to a GPU; the legacy stream does to any.
void check_stream(std::string_view operation, int device);

/// Waits until all streams of a GPU are done.
void wait_for_gpu(int device);

}  // namespace tilewright::run
