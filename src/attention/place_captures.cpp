// Puts the arrays that mods capture where programs can read them.
#include <algorithm>
#include <cstdint>

#include "attention/prepare.h"
#include "attention/tensors.h"
#include "attention/tiles/options.h"
#include "mod/traced.h"
#include "support/debug_log.h"

namespace tilewright::attn {
namespace {

int alignment_of(const Tensor& tensor) {
    constexpr std::uintptr_t kMost = 16;
    const auto address = reinterpret_cast<std::uintptr_t>(tensor.raw()) | kMost;
    return static_cast<int>(address & (~address + 1));
}

/// The captured array on the device of the call: host arrays are copied to its GPU.
Tensor placed(const char* argument, const Capture& capture, const AttentionSpec& spec) {
    const Tensor& tensor = capture.tensor();
    if (spec.on_gpu() && tensor.device().kind == Device::Kind::cpu) {
        debug_log("attention", "slow path: capture `{}` of the {} is copied to {} in every call",
                  capture.name(), argument, to_string(spec.device));
        return tensor.to(spec.device);
    }
    expect_device(fmt::format("capture `{}` of the {}", capture.name(), argument).c_str(), tensor,
                  spec.device);
    return tensor;
}

}  // namespace

void place_captures(const AttentionOptions& options, AttentionCall& call) {
    const AttentionSpec& spec = call.spec;
    const auto place = [&](const char* argument, const Mod& mod, bool has_gradients,
                           ModSpec& placed_mod) {
        const mod::Traced& traced = mod::trace(mod, tiles::accumulator(spec.dtype), spec.checked);
        for (const Capture& capture : traced.captures) {
            const Tensor tensor = placed(argument, capture, spec);
            placed_mod.captures.push_back({tensor.dtype(), tensor.shape(), tensor.strides(),
                                           alignment_of(tensor),
                                           has_gradients && capture.differentiable()});
            call.buffers.captured.push_back(tensor);
        }
    };
    if (spec.score) place("score_mod", options.score_mod, true, call.spec.score);
    if (spec.mask) place("mask", options.mask, false, call.spec.mask);
}

}  // namespace tilewright::attn
