// What operations ask about a machine.
#include "run/machine.h"

#include <utility>

#include "cpu/machine.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/graph.h"
#include "cuda/runtime/stream.h"

namespace tilewright::run {

void parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& body) {
    cpu::parallel_for(n, body);
}

int shared_bytes_per_block(int device) {
    return cuda::device_info(device).shared_bytes_per_block;
}

int multiprocessors(int device) {
    return cuda::device_info(device).multiprocessors;
}

std::string arch(int device) {
    return cuda::device_info(device).arch();
}

int gpu_of(const void* address, const char* argument) {
    return cuda::device_of(reinterpret_cast<cuda::DeviceAddress>(address), argument);
}

bool is_capturing() {
    return cuda::is_capturing();
}

void keep_for_graph(std::shared_ptr<const void> object) {
    if (cuda::is_capturing()) cuda::keep_for_graph(cuda::current_stream(), std::move(object));
}

void expect_no_capture(std::string_view operation, std::string_view what) {
    cuda::expect_no_capture(operation, what);
}

void check_stream(std::string_view operation, int device) {
    cuda::check_stream(operation, device);
}

}  // namespace tilewright::run
