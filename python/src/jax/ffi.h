// Shared by the XLA FFI handlers of tilewright.jax._ffi: call sites, buffers as tensors, errors.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/memo.h"
#include "tilewright/error.h"
#include "tilewright/recording.h"
#include "tilewright/run.h"
#include "tilewright/tensor.h"
#include "xla/ffi/api/ffi.h"

namespace tilewright::jax {

namespace nb = nanobind;
namespace ffi = xla::ffi;

/// The attributes of a custom call. Python always passes them: a missing one is an internal error.
class Attributes {
  public:
    explicit Attributes(const ffi::Dictionary& values) : values_(values) {}

    template <typename T>
    T get(std::string_view name) const {
        auto value = values_.get<T>(name);
        if (value.has_error()) {
            throw InternalError("[jax] attribute " + std::string(name) + ": " +
                                value.error().message());
        }
        return *value;
    }
    std::string text(std::string_view name) const {
        return std::string(get<std::string_view>(name));
    }

  private:
    const ffi::Dictionary& values_;
};

/// One execution of a custom call: operands and results as tensors on XLA's memory.
struct CustomCall {
    std::vector<Tensor> operands;
    std::vector<Tensor> results;
    Device device;
};

/// What is made from the attributes of calls, keyed by the attribute `site`, a digest of the
/// others. Calls with equal attributes share it, on all devices and threads. The most recently used
/// ones are kept.
template <typename Site>
class Sites {
  public:
    static std::shared_ptr<const Site> get(const ffi::Dictionary& values) {
        using Kept = std::shared_ptr<const Site>;
        static auto* const kSites = new Memo<std::string, Kept>("call sites of JAX", 4096);
        const Attributes attributes(values);
        const auto digest = attributes.get<std::string_view>("site");
        if (std::optional<Kept> known = kSites->find(digest)) return *std::move(known);
        return kSites->put(std::string(digest), std::make_shared<const Site>(attributes));
    }
};

/// Runs `body`; exceptions become XLA errors with their text.
template <typename Body>
ffi::Error guarded(Body body) {
    try {
        body();
        return ffi::Error::Success();
    } catch (const UserError& error) {
        return ffi::Error::InvalidArgument(error.what());
    } catch (const OutOfMemory& error) {
        return ffi::Error(ffi::ErrorCode::kResourceExhausted, error.what());
    } catch (const std::exception& error) {
        return ffi::Error::Internal(error.what());
    }
}

CustomCall call_on(Device device, ffi::RemainingArgs operands, ffi::RemainingRets results);

/// Recorded launches of a site's calls on the host, by the dtypes and shapes of their arrays.
class Recordings {
  public:
    /// Repeats the launches of such a call or, the first time, runs and records it.
    void run(ffi::RemainingArgs operands, ffi::RemainingRets results,
             const std::function<void(const CustomCall&)>& run);

  private:
    using Types = std::vector<std::int64_t>;
    Memo<Types, std::shared_ptr<const Recording>> known_{"recordings of JAX", 64};
};

/// While it lives, this thread's GPU work goes to XLA's stream, and temporary memory is XLA's or,
/// while a command buffer is recorded, the command buffer's own.
class XlaScope {
  public:
    XlaScope(void* stream, int device, ffi::ScratchAllocator& scratch);

  private:
    CudaScope scope_;
};

/// A site's calls on the host. If the site's `repeats()` says that only dtypes and shapes decide
/// what is launched, the launches of the first call with each are recorded, and later calls repeat
/// them.
template <typename Site>
class HostSite {
  public:
    explicit HostSite(const Attributes& given) : site_(given) {}

    void run(ffi::RemainingArgs operands, ffi::RemainingRets results) const {
        if (!site_.repeats()) return site_.run(call_on({}, operands, results));
        recordings_.run(operands, results, [this](const CustomCall& call) { site_.run(call); });
    }

  private:
    Site site_;
    mutable Recordings recordings_;
};

/// The host handler of `Site`, a class that is constructed from Attributes and whose `run(const
/// CustomCall&) const` executes a call.
template <typename Site>
nb::capsule host_handler() {
    constexpr auto kRun = [](ffi::RemainingArgs operands, ffi::RemainingRets results,
                             ffi::Dictionary attributes) {
        return guarded([&] { Sites<HostSite<Site>>::get(attributes)->run(operands, results); });
    };
    XLA_FFI_DEFINE_HANDLER(kHandler, kRun,
                           ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
    return nb::capsule(reinterpret_cast<void*>(kHandler));
}

/// Whether XLA may record a call in a command buffer: it must do the same every time and neither
/// read arrays on the host nor wait. XLA does not record the first run, which compiles and loads
/// kernels.
enum class CommandBuffers : std::uint8_t { no, yes };

/// The same on CUDA.
template <typename Site, CommandBuffers buffers>
nb::capsule cuda_handler() {
    constexpr auto kRun = [](void* stream, std::int32_t device, ffi::ScratchAllocator scratch,
                             ffi::RemainingArgs operands, ffi::RemainingRets results,
                             ffi::Dictionary attributes) {
        return guarded([&] {
            const XlaScope scope(stream, device, scratch);
            Sites<Site>::get(attributes)->run(call_on(Device::cuda(device), operands, results));
        });
    };
    static constexpr auto kBinding = [] {
        return ffi::Ffi::Bind()
            .Ctx<ffi::PlatformStream<void*>>()
            .Ctx<ffi::DeviceOrdinal>()
            .Ctx<ffi::ScratchAllocator>()
            .RemainingArgs()
            .RemainingRets()
            .Attrs();
    };
    if constexpr (buffers == CommandBuffers::yes) {
        XLA_FFI_DEFINE_HANDLER(kHandler, kRun, kBinding(), {ffi::Traits::kCmdBufferCompatible});
        return nb::capsule(reinterpret_cast<void*>(kHandler));
    } else {
        XLA_FFI_DEFINE_HANDLER(kHandler, kRun, kBinding());
        return nb::capsule(reinterpret_cast<void*>(kHandler));
    }
}

/// Adds a target to the list of (name, platform, handler) that Python registers.
template <typename Site, CommandBuffers buffers>
void add_target(nb::list& targets, const char* name) {
    targets.append(nb::make_tuple(name, "cpu", host_handler<Site>()));
    targets.append(nb::make_tuple(name, "CUDA", cuda_handler<Site, buffers>()));
}

void add_attention_targets(nb::list& targets);
void add_cuda_kernel_targets(nb::list& targets);
void add_norm_targets(nb::list& targets);
void add_program_targets(nb::list& targets);
void bind_program(nb::module_& module);

}  // namespace tilewright::jax
