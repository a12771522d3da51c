// What operations ask of a machine.
#include "run/machine.h"

#include "cuda/runtime/device.h"
#include "cuda/runtime/stream.h"

namespace tilewright::run {

int shared_bytes_per_block(int device) {
    return cuda::device_info(device).shared_bytes_per_block;
}

void expect_no_capture(std::string_view operation, std::string_view what) {
    cuda::expect_no_capture(operation, what);
}

void wait_for_gpu(int device) {
    const cuda::ContextScope scope(device);
    cuda::driver().check(cuda::driver().cuCtxSynchronize(), "waiting for a GPU");
}

}  // namespace tilewright::run
