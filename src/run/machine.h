// What operations ask of a machine before they choose how to use it: `run` looks into cpu/ and
// cuda/ for them.
#pragma once

#include <string_view>

namespace tilewright::run {

/// Shared memory that a thread block of a GPU may have. UserError where there is no such GPU.
int shared_bytes_per_block(int device);

/// UserError while this thread's stream is captured: `what` would allocate or wait.
void expect_no_capture(std::string_view operation, std::string_view what);

/// Waits until all streams of a GPU are done.
void wait_for_gpu(int device);

}  // namespace tilewright::run
