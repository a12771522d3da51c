// The stream that a thread's GPU work runs on, and whether it is being captured in a graph.
#pragma once

#include <string_view>

#include "cuda/runtime/driver.h"

namespace tilewright::cuda {

/// This thread's stream; nullptr: the legacy default stream.
StreamHandle current_stream();
void set_current_stream(StreamHandle stream);

/// True while a stream (this thread's, if none is given) is captured in a CUDA graph.
bool is_capturing(StreamHandle stream);
bool is_capturing();

/// UserError while this thread's stream is captured: `what` would allocate or wait.
void expect_no_capture(std::string_view operation, std::string_view what);

/// UserError unless this thread's stream belongs to the device; the legacy stream always does.
void check_stream(std::string_view operation, int device);

/// While this lives, this thread may allocate, free, load and unload although a stream is captured,
/// by this thread or another.
class DuringCapture {
  public:
    DuringCapture();
    ~DuringCapture();
    DuringCapture(const DuringCapture&) = delete;
    DuringCapture& operator=(const DuringCapture&) = delete;

  private:
    int mode_;
};

}  // namespace tilewright::cuda
