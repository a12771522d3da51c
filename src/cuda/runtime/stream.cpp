// The current stream of a thread.
#include "cuda/runtime/stream.h"

#include "support/check.h"

namespace tilewright::cuda {
namespace {

thread_local StreamHandle stream_of_thread = nullptr;
constexpr int kCaptureModeRelaxed = 2;

}  // namespace

StreamHandle current_stream() {
    return stream_of_thread;
}

void set_current_stream(StreamHandle stream) {
    stream_of_thread = stream;
}

bool is_capturing() {
    // The legacy stream cannot be captured, and asking about it would break the capture of another.
    if (stream_of_thread == nullptr) return false;
    int status = 0;
    driver().check(driver().cuStreamIsCapturing(stream_of_thread, &status), "asking for a capture");
    return status != 0;
}

void expect_no_capture(std::string_view operation, std::string_view what) {
    if (!is_capturing()) return;
    user_error(operation,
               "expected {} before a CUDA graph is captured; call once with such arguments before "
               "the capture",
               what);
}

AllocationDuringCapture::AllocationDuringCapture() : mode_(kCaptureModeRelaxed) {
    driver().cuThreadExchangeStreamCaptureMode(&mode_);
}

AllocationDuringCapture::~AllocationDuringCapture() {
    driver().cuThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace tilewright::cuda
