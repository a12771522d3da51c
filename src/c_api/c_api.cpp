// The C interface: the machine, mods, tensors.
#include "tilewright/c_api.h"

#include <cstdint>
#include <cstring>

#include "c_api/convert.h"
#include "support/check.h"
#include "tilewright/run.h"
#include "tilewright/system.h"
#include "tilewright/version.h"

namespace tilewright::c_api {

std::string& text() {
    thread_local std::string kText;
    return kText;
}

Tensor borrow(const DLTensor* view) {
    if (!view) return {};
    return Tensor::from_dlpack(
        new DLManagedTensor{*view, nullptr, [](DLManagedTensor* self) { delete self; }});
}

Device device_of(const char* op, DLDevice device) {
    // A caller may write any number here, which an object of the enum must not hold.
    std::int32_t type;
    static_assert(sizeof(type) == sizeof(device.device_type));
    std::memcpy(&type, &device.device_type, sizeof(type));
    if (type != kDLCPU && type != kDLCUDA)
        user_error(op, "expected a device of CPU or CUDA but got type {}", type);
    return type == kDLCUDA ? Device::cuda(device.device_id) : Device{};
}

DLDataType dtype_of(DType dtype) {
    DLManagedTensor* const example = Tensor::empty(dtype, {1}).to_dlpack();
    const DLDataType result = example->dl_tensor.dtype;
    example->deleter(example);
    return result;
}

void keep_text(const char* what) noexcept {
    try {
        text() = what;
    } catch (const std::bad_alloc&) {
        text().clear();
    }
}

Results::~Results() {
    for (const auto& [place, managed] : results_) tw_release(managed);
}

void Results::add(DLManagedTensor** place, const Tensor& tensor) {
    if (!place) return;
    results_.emplace_back(place, nullptr);  // first, so that a failure here leaks no export
    if (tensor.defined()) results_.back().second = tensor.to_dlpack();
}

void Results::give() noexcept {
    for (const auto& [place, managed] : results_) *place = managed;
    results_.clear();
}

void expect_given(const char* op, const char* argument, const void* pointer) {
    if (!pointer) user_error(op, "expected {} but got null", argument);
}

}  // namespace tilewright::c_api

using namespace tilewright;
using c_api::borrow;
using c_api::expect_given;
using c_api::guarded;

const char* tw_error(void) {
    return c_api::text().c_str();
}

const char* tw_version(void) {
    return version();
}

tw_status tw_set_num_threads(int threads) {
    return guarded([&] { set_num_threads(threads); });
}

tw_status tw_set_checked(int on) {
    return guarded([&] { set_checked(on != 0); });
}

tw_status tw_set_cuda_stream(void* stream) {
    return guarded([&] { set_cuda_stream(stream); });
}

const char* tw_doctor(void) {
    guarded([&] { c_api::text() = doctor(); });
    return c_api::text().c_str();
}

void tw_release(DLManagedTensor* tensor) {
    if (tensor && tensor->deleter) tensor->deleter(tensor);
}

tw_status tw_parse_mod(const char* text, int kind, const char* const* names,
                       const DLTensor* const* arrays, int count, tw_mod** result) {
    return guarded([&] {
        expect_given("tw_parse_mod", "text", text);
        expect_given("tw_parse_mod", "result", result);
        if (count < 0) user_error("tw_parse_mod", "expected count of at least 0 but got {}", count);
        if (count > 0) {
            expect_given("tw_parse_mod", "names", names);
            expect_given("tw_parse_mod", "arrays", arrays);
        }
        Bindings bindings;
        for (int i = 0; i < count; ++i) {
            expect_given("tw_parse_mod", "every name", names[i]);
            expect_given("tw_parse_mod", names[i], arrays[i]);
            bindings[names[i]] = borrow(arrays[i]);
        }
        std::optional<Mod::Kind> wanted;
        if (kind == TW_MOD_SCORE) {
            wanted = Mod::Kind::score;
        } else if (kind == TW_MOD_MASK) {
            wanted = Mod::Kind::mask;
        } else if (kind != TW_MOD_ANY) {
            user_error("tw_parse_mod",
                       "expected kind to be TW_MOD_ANY, TW_MOD_SCORE or TW_MOD_MASK but got {}",
                       kind);
        }
        *result = new tw_mod{parse_mod(text, bindings, wanted)};
    });
}

void tw_mod_release(tw_mod* mod) {
    delete mod;
}

const char* tw_mod_ir(const tw_mod* mod) {
    const tw_status status = guarded([&] {
        expect_given("tw_mod_ir", "mod", mod);
        c_api::text() = mod->mod.ir();
    });
    return status == TW_OK ? c_api::text().c_str() : nullptr;
}
