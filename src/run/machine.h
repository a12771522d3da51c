// What operations ask about a machine before they choose how to use it; `run` asks cpu/ and cuda/
// for them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tilewright::run {

/// Runs body(i) exactly once for each i in [0, n) on the CPU's threads, and returns when all are
/// done.
void parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& body);

/// Bytes of shared memory that a thread block may use on a GPU. UserError if there is no such GPU.
int shared_bytes_per_block(int device);

/// Number of multiprocessors of a GPU. UserError if there is no such GPU.
int multiprocessors(int device);

/// The architecture that kernels for a GPU are compiled for: "sm_90a". UserError if there is no
/// such GPU.
std::string arch(int device);

/// The GPU that an address belongs to. UserError naming `argument` for a host address.
int gpu_of(const void* address, const char* argument);

/// True while this thread's stream is being captured into a CUDA graph.
bool is_capturing();

/// If this thread's stream is being captured: the object lives as long as the graph.
void keep_for_graph(std::shared_ptr<const void> object);

/// UserError while this thread's stream is being captured, because `what` would allocate or wait.
void expect_no_capture(std::string_view operation, std::string_view what);

/// UserError unless this thread's stream belongs to this GPU; the legacy stream belongs to any.
void check_stream(std::string_view operation, int device);

}  // namespace tilewright::run
