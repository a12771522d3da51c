// Kernels by variant, loaded once and kept.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/sm90/device_tensor.h"
#include "attention/sm90/first_call.h"
#include "cuda/runtime/device.h"
#include "run/recorder.h"
#include "support/debug_log.h"
#include "support/memo.h"
#include "tilewright/error.h"

namespace tilewright::attn::sm90 {

template <typename Kernels>
Memo<std::pair<std::string, int>, Kernels>& kernel_memo() {
    static auto* const kKernels =
        new Memo<std::pair<std::string, int>, Kernels>("kernels of the Hopper engine", 512);
    return *kKernels;
}

/// The kernels of a variant that are loaded on a device. UserError on devices that are not Hopper
/// GPUs.
template <typename Kernels>
std::optional<Kernels> loaded(const std::string& variant, int device) {
    if (std::optional<Kernels> known = kernel_memo<Kernels>().find(std::pair(variant, device)))
        return known;
    const cuda::DeviceInfo& info = cuda::device_info(device);
    require(info.major == 9 && info.minor == 0, "device", "compute capability 9.0", info.arch());
    return std::nullopt;
}

/// The same; `load` loads them the first time.
template <typename Kernels, typename Load>
Kernels load_once(const std::string& variant, int device, Load load) {
    if (std::optional<Kernels> known = loaded<Kernels>(variant, device)) return *std::move(known);
    // Not under the lock: other kernels can load at the same time, and each is compiled by only one
    // thread.
    return kernel_memo<Kernels>().put(std::pair(variant, device), load());
}

/// What calls of a variant run until its full kernels are compiled.
template <typename Kernels>
struct Interim {
    Kernels kernels;
    std::vector<cuda::CompileRequest> full;
};

template <typename Kernels>
auto& interim_memo() {
    using Shared = std::shared_ptr<const Interim<Kernels>>;
    static auto* const kInterim =
        new Memo<std::pair<std::string, int>, Shared>("compact kernels of the Hopper engine", 64);
    return *kInterim;
}

/// The same, where calls may run compact kernels until the full ones are compiled: `load(units)`
/// loads what it is given.
template <typename Kernels, typename Load>
Kernels load_in_stages(const FirstCall& call, const std::string& variant, int device,
                       const std::function<std::vector<cuda::CompileRequest>()>& generate,
                       Load load) {
    if (const auto known = loaded<Kernels>(variant, device)) return *known;
    const std::pair<std::string, int> key{variant, device};
    const auto interim = [&]() -> std::optional<Kernels> {
        const auto found = interim_memo<Kernels>().find(key);
        if (!found || !stays_compact(call, device, (*found)->full)) return std::nullopt;
        run::postpone_recording();
        return (*found)->kernels;
    };
    if (const auto compact_kernels = interim()) return *compact_kernels;
    const std::vector<cuda::CompileRequest> units = generate();
    if (const auto loading = begins_compact(call, variant, device, units)) {
        run::postpone_recording();
        try {
            const Kernels kernels = load(compact(units));
            compile_ahead(units);  // not at the same time, which would slow both down
            runs_compact(call, device, units);
            interim_memo<Kernels>().put(
                key, std::make_shared<const Interim<Kernels>>(Interim<Kernels>{kernels, units}));
            // Another thread may have loaded the full ones meanwhile.
            if (loaded<Kernels>(variant, device)) interim_memo<Kernels>().drop(key);
            return kernels;
        } catch (const InternalError& error) {
            // What does not compile as a compact kernel may compile as a full one; if it does not,
            // the call fails with the error of the kernels that it would have run otherwise.
            debug_log("attention", "sm90: no compact kernels: {}", error.what());
        }
    } else {
        await_compact(call, variant, device);
        if (const auto compact_kernels = interim()) return *compact_kernels;
    }
    const Kernels kernels = load_once<Kernels>(variant, device, [&] { return load(units); });
    interim_memo<Kernels>().drop(key);
    return kernels;
}

}  // namespace tilewright::attn::sm90
