// What the XLA FFI handlers of tilewright.jax._ffi share: buffers as tensors, errors, registration.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tilewright/error.h"
#include "tilewright/tensor.h"
#include "xla/ffi/api/ffi.h"

namespace tilewright::jax {

namespace nb = nanobind;
namespace ffi = xla::ffi;

/// One execution of a custom call: operands and results as tensors on XLA's memory.
struct CustomCall {
    std::vector<Tensor> operands;
    std::vector<Tensor> results;
    ffi::Dictionary attributes;

    /// An attribute that the Python side always gives; its absence is our error.
    template <typename T>
    T get(std::string_view name) const {
        auto value = attributes.get<T>(name);
        if (value.has_error()) {
            throw InternalError("[jax] attribute " + std::string(name) + ": " +
                                value.error().message());
        }
        return *value;
    }
    std::string text(std::string_view name) const {
        return std::string(get<std::string_view>(name));
    }
};

using Body = void (*)(const CustomCall&);

/// Runs `body` on these buffers on the host; exceptions become XLA errors with their text.
ffi::Error run_on_host(Body body, ffi::RemainingArgs operands, ffi::RemainingRets results,
                       ffi::Dictionary attributes);

/// The host handler of `body`, as jax.ffi.register_ffi_target takes it.
template <Body body>
nb::capsule host_handler() {
    constexpr auto kRun = [](ffi::RemainingArgs operands, ffi::RemainingRets results,
                             ffi::Dictionary attributes) {
        return run_on_host(body, operands, results, attributes);
    };
    XLA_FFI_DEFINE_HANDLER(kHandler, kRun,
                           ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
    return nb::capsule(reinterpret_cast<void*>(kHandler));
}

/// Runs `body` on buffers of a GPU, its work on XLA's stream.
ffi::Error run_on_cuda(Body body, void* stream, std::int32_t device, ffi::RemainingArgs operands,
                       ffi::RemainingRets results, ffi::Dictionary attributes);

/// The CUDA handler of `body`. Kernels are compiled and loaded at the first run, so it does not say
/// that it may be captured in a command buffer.
template <Body body>
nb::capsule cuda_handler() {
    constexpr auto kRun = [](void* stream, std::int32_t device, ffi::RemainingArgs operands,
                             ffi::RemainingRets results, ffi::Dictionary attributes) {
        return run_on_cuda(body, stream, device, operands, results, attributes);
    };
    XLA_FFI_DEFINE_HANDLER(kHandler, kRun,
                           ffi::Ffi::Bind()
                               .Ctx<ffi::PlatformStream<void*>>()
                               .Ctx<ffi::DeviceOrdinal>()
                               .RemainingArgs()
                               .RemainingRets()
                               .Attrs());
    return nb::capsule(reinterpret_cast<void*>(kHandler));
}

/// Adds a target to the dict {target: {platform: handler}} that Python registers.
void add_target(nb::dict& targets, const char* name, const char* platform, nb::capsule handler);

void add_attention_targets(nb::dict& targets);
void add_norm_targets(nb::dict& targets);
void add_program_targets(nb::dict& targets);
void bind_program(nb::module_& module);

}  // namespace tilewright::jax
