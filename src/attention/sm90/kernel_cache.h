// Kernels by variant, loaded once and kept.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "attention/sm90/device_tensor.h"
#include "cuda/runtime/device.h"
#include "support/memo.h"

namespace tilewright::attn::sm90 {

/// The kernels of a variant on a device; `load` loads them the first time. UserError on devices
/// that are not Hopper GPUs.
template <typename Kernels, typename Load>
Kernels load_once(const std::string& variant, int device, Load load) {
    static auto* const kKernels =
        new Memo<std::pair<std::string, int>, Kernels>("kernels of the Hopper engine", 512);
    const std::pair<std::string, int> key{variant, device};
    if (const std::optional<Kernels> known = kKernels->find(key)) return *known;
    const cuda::DeviceInfo& info = cuda::device_info(device);
    require(info.major == 9 && info.minor == 0, "device", "compute capability 9.0", info.arch());
    // Not under the lock: other kernels can load at the same time, and each is compiled by only one
    // thread.
    return kKernels->put(key, load());
}

}  // namespace tilewright::attn::sm90
