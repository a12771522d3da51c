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

bool is_capturing(StreamHandle stream) {
    // The legacy stream cannot be captured, and asking about it would break the capture of another.
    if (stream == nullptr) return false;
    int status = 0;
    driver().check(driver().cuStreamIsCapturing(stream, &status), "asking for a capture");
    return status != 0;
}

bool is_capturing() {
    return is_capturing(stream_of_thread);
}

void expect_no_capture(std::string_view operation, std::string_view what) {
    if (!is_capturing()) return;
    user_error(operation,
               "expected {} before a CUDA graph is captured; call once with such arguments before "
               "the capture",
               what);
}

void check_stream(std::string_view operation, int device) {
    // nullptr, 1 and 2 are the default streams of whatever device is current.
    if (reinterpret_cast<std::uintptr_t>(stream_of_thread) <= 2) return;
    const Driver& cuda = driver();
    ContextHandle context = nullptr;
    cuda.check(cuda.cuStreamGetCtx(stream_of_thread, &context), "asking for a stream's context");
    cuda.check(cuda.cuCtxPushCurrent_v2(context), "entering a stream's context");
    int owner = device;
    const int status = cuda.cuCtxGetDevice(&owner);
    cuda.cuCtxPopCurrent_v2(&context);
    cuda.check(status, "asking for a stream's device");
    if (owner == device) return;
    user_error(operation,
               "expected a stream of cuda:{}, where the arrays are, but the current one belongs to "
               "cuda:{}",
               device, owner);
}

DuringCapture::DuringCapture() : mode_(kCaptureModeRelaxed) {
    driver().cuThreadExchangeStreamCaptureMode(&mode_);
}

DuringCapture::~DuringCapture() {
    driver().cuThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace tilewright::cuda
