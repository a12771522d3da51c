// Launches of the Hopper kernels as part of a recording.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "attention/sm90/backward.h"
#include "attention/sm90/forward.h"
#include "cuda/runtime/stream.h"
#include "run/recorder.h"

namespace tilewright::attn::sm90 {

/// An array of a call, and where the inputs of its kernels hold its address.
template <typename Inputs>
struct Placed {
    Tensor tensor;
    cuda::DeviceAddress& (*address)(Inputs&, std::size_t index);
    std::size_t index = 0;
};

inline std::vector<cuda::Kernel*> all_of(ForwardKernels& k) {
    return {&k.main, &k.combine};
}
inline std::vector<cuda::Kernel*> all_of(BackwardKernels& k) {
    return {&k.prepare, &k.main, &k.finish, &k.join, &k.sinks, &k.captures, &k.query};
}

/// Adds the last `count` launches to this thread's recording: `launch(inputs, kernels, stream)`
/// makes them again with the arrays at other addresses.
template <typename Inputs, typename Kernels, typename Launch>
void record(std::uint64_t count, const Inputs& inputs, Kernels kernels,
            std::vector<Placed<Inputs>> read, std::vector<Placed<Inputs>> written, Launch launch) {
    run::Recorder* const recorder = run::Recorder::current();
    if (recorder == nullptr) return;
    const auto is_absent = [](const Placed<Inputs>& array) { return !array.tensor.defined(); };
    std::erase_if(read, is_absent);
    std::erase_if(written, is_absent);
    std::vector<Tensor> inputs_of, outputs_of;
    for (const Placed<Inputs>& array : read) inputs_of.push_back(array.tensor);
    for (const Placed<Inputs>& array : written) outputs_of.push_back(array.tensor);
    std::vector<Placed<Inputs>> places = std::move(read);
    places.insert(places.end(), written.begin(), written.end());
    for (Placed<Inputs>& array : places) array.tensor = {};
    std::vector<std::weak_ptr<const void>> modules;
    for (cuda::Kernel* const kernel : all_of(kernels)) {
        // The memo of kernels says how many stay loaded.
        if (kernel->module) modules.emplace_back(std::exchange(kernel->module, nullptr));
    }
    const auto repeat = [inputs, kernels, places, launch](std::span<void* const> addresses) {
        Inputs moved = inputs;
        for (std::size_t i = 0; i < places.size(); ++i) {
            places[i].address(moved, places[i].index) =
                reinterpret_cast<cuda::DeviceAddress>(addresses[i]);
        }
        launch(moved, kernels, cuda::current_stream());
    };
    recorder->launched(count, repeat, std::move(modules), inputs_of, outputs_of);
}

}  // namespace tilewright::attn::sm90
