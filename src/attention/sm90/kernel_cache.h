// Kernels of one variant, loaded once and kept.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "attention/sm90/device_tensor.h"
#include "cuda/runtime/device.h"
#include "support/memo.h"

namespace tilewright::attn::sm90 {

/// The kernels that `load` loads, on a device, for a key; kept for the next calls for it. UserError
/// on devices that are no Hopper GPU.
template <typename Kernels, typename Load>
Kernels load_once(const std::string& variant, int device, Load load) {
    static auto* const kKernels =
        new Memo<std::pair<std::string, int>, Kernels>("kernels of the Hopper engine", 512);
    const std::pair<std::string, int> key{variant, device};
    if (const std::optional<Kernels> known = kKernels->find(key)) return *known;
    const cuda::DeviceInfo& info = cuda::device_info(device);
    require(info.major == 9 && info.minor == 0, "device", "compute capability 9.0", info.arch());
    // Not under the lock: other kernels load meanwhile, and one thread compiles each of them.
    return kKernels->put(key, load());
}

}  // namespace tilewright::attn::sm90
