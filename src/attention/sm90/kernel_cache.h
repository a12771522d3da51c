// Kernels of one variant, loaded once and kept.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "attention/sm90/device_tensor.h"
#include "cuda/runtime/device.h"

namespace tilewright::attn::sm90 {

/// The kernels that `load` loads, on a device, for a key; at the first call for it. They stay
/// loaded until the process ends. UserError on devices that are no Hopper GPU.
template <typename Kernels, typename Load>
const Kernels& load_once(const std::string& variant, int device, Load load) {
    static std::mutex mutex;
    static auto* const kKernels = new std::map<std::pair<std::string, int>, Kernels>;
    const std::pair<std::string, int> key{variant, device};
    {
        const std::lock_guard lock(mutex);
        if (const auto found = kKernels->find(key); found != kKernels->end()) return found->second;
    }
    const cuda::DeviceInfo& info = cuda::device_info(device);
    require(info.major == 9 && info.minor == 0, "device", "compute capability 9.0", info.arch());
    // Not under the lock: other kernels load meanwhile, and one thread compiles each of them.
    const Kernels kernels = load();
    const std::lock_guard lock(mutex);
    return kKernels->try_emplace(key, kernels).first->second;
}

}  // namespace tilewright::attn::sm90
