// PyTorch tensors as views, results from its allocator, its streams.
#include "torch/exchange.h"

#include <atomic>
#include <string>
#include <utility>

#include "bindings.h"

namespace tilewright {
namespace torch {
namespace {

Torch& state() {
    static Torch torch;
    return torch;
}

/// Views whose memory cannot be read directly do not have dense strides: the imaginary part of a
/// conjugate is every second element, negated.
bool may_be_negative(const DLTensor& view) {
    const int last = view.ndim - 1;
    return last < 0 || view.shape[last] <= 1 || view.strides[last] != 1;
}

bool is_negative(PyObject* object) {
    const nb::object negative = nb::steal(PyObject_CallMethod(object, "is_neg", nullptr));
    if (!negative.is_valid()) nb::raise_python_error();
    return negative.is(Py_True);
}

/// Memory from torch's allocator, on its stream: it may be reused once the work is queued.
std::shared_ptr<void> torch_memory(DLDevice device, std::int64_t bytes) {
    if (bytes == 0) return {};
    DLTensor prototype{};
    prototype.device = device;
    prototype.ndim = 1;
    prototype.dtype = {kDLUInt, 8, 1};
    prototype.shape = &bytes;
    DLManagedTensorVersioned* managed = nullptr;
    std::string message;
    const int failed = torch().api->managed_tensor_allocator(
        &prototype, &managed, &message,
        [](void* to, const char*, const char* text) { *static_cast<std::string*>(to) = text; });
    if (failed != 0) {
        // It has the same kind of error for every reason.
        if (message.find("out of memory") != message.npos) throw AllocatorOutOfMemory(message);
        throw std::runtime_error(message);
    }
    return {address_of(managed->dl_tensor), [managed](void*) { managed->deleter(managed); }};
}

/// Finds the functions of the version that we know; a newer one may come first in the list.
const DLPackExchangeAPI* find_api(nb::handle capsule) {
    constexpr std::uint32_t kMajor = 1;
    const auto* header = static_cast<const DLPackExchangeAPIHeader*>(
        PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (!header) nb::raise_python_error();
    while (header && header->version.major != kMajor) header = header->prev_api;
    const auto* api = reinterpret_cast<const DLPackExchangeAPI*>(header);
    if (!api || !api->dltensor_from_py_object_no_sync) {
        throw nb::import_error(
            "[tilewright.torch] expected exchange functions of DLPack 1 in torch but got none");
    }
    return api;
}

}  // namespace

const Torch& torch() {
    return state();
}

bool Arguments::view_of(nb::handle object, DLTensor& view) {
    const PyTypeObject* const type = Py_TYPE(object.ptr());
    if (type != torch().tensor && type != torch().parameter) return false;
    if (torch().api->dltensor_from_py_object_no_sync(object.ptr(), &view) != 0) {
        PyErr_Clear();  // a meta tensor or another layout: reported elsewhere
        return false;
    }
    if (view.device.device_type != kDLCPU && view.device.device_type != kDLCUDA) return false;
    return !may_be_negative(view) || !is_negative(object.ptr());
}

bool Arguments::add(nb::handle object) {
    DLTensor view{};
    if (!view_of(object, view)) return false;
    add(object, view);
    return true;
}

void Arguments::add(nb::handle object, const DLTensor& view) {
    objects_.push_back(object);
    views_.push_back(view);
    types_.push_back(view.dtype.code | view.dtype.bits << 8 | view.dtype.lanes << 16);
    types_.push_back(std::int64_t{view.device.device_type} << 32 | view.device.device_id);
    types_.push_back(view.ndim);
    types_.insert(types_.end(), view.shape, view.shape + view.ndim);
    types_.insert(types_.end(), view.strides, view.strides + view.ndim);
}

std::vector<nb::object> Arguments::make_objects() {
    std::vector<nb::object> made;
    for (std::size_t i = 0; i < views_.size(); ++i) {
        auto* managed = new DLManagedTensorVersioned{};
        managed->version = {1, 0};
        managed->deleter = [](DLManagedTensorVersioned* self) { delete self; };
        managed->dl_tensor = views_[i];
        void* object = nullptr;
        if (torch().api->managed_tensor_to_py_object_no_sync(managed, &object) != 0) {
            nb::raise_python_error();
        }
        made.push_back(nb::steal(static_cast<PyObject*>(object)));
        objects_[i] = made.back();
    }
    return made;
}

std::vector<Tensor> Arguments::tensors() const {
    std::vector<Tensor> tensors;
    tensors.reserve(views_.size());
    for (const DLTensor& view : views_) tensors.push_back(tensor_of(view));
    return tensors;
}

std::vector<void*> Arguments::addresses() const {
    std::vector<void*> addresses;
    addresses.reserve(views_.size() + 3);
    for (const DLTensor& view : views_) addresses.push_back(address_of(view));
    return addresses;
}

void* address_of(const DLTensor& view) {
    return static_cast<std::byte*>(view.data) + view.byte_offset;
}

std::string of_front_end(std::string_view text) {
    constexpr std::string_view kCore = "[attention]";
    if (!text.starts_with(kCore)) return std::string(text);
    return "[flex_attention]" + std::string(text.substr(kCore.size()));
}

void follow_threads(long number) {
    static std::atomic<long> seen = -1;
    if (number == seen.load(std::memory_order_relaxed)) return;
    const nb::gil_scoped_acquire held;
    seen.store(number, std::memory_order_relaxed);
    nb::handle(torch().follow_threads)(number);
}

Tensor tensor_of(const DLTensor& view) {
    // Its deleter frees nothing else: the caller's objects outlive the call.
    auto* managed = new DLManagedTensor{view, nullptr, [](DLManagedTensor* self) { delete self; }};
    return Tensor::from_dlpack(managed);
}

Result make_result(nb::handle arguments, nb::handle like) {
    Result result{};
    if (like) {
        PyObject* const source = like.ptr();
        result.object = nb::steal(PyObject_Vectorcall(torch().empty_like, &source, 1, nullptr));
    } else {
        const auto given = nb::borrow<nb::tuple>(arguments);
        result.object =
            nb::steal(PyObject_Call(torch().empty_strided, given[0].ptr(), given[1].ptr()));
    }
    if (!result.object.is_valid() ||
        torch().api->dltensor_from_py_object_no_sync(result.object.ptr(), &result.view) != 0) {
        nb::raise_python_error();
    }
    return result;
}

TorchScope::TorchScope(DLDevice device) {
    if (device.device_type != kDLCUDA) return;
    void* stream = nullptr;
    if (torch().api->current_work_stream(device.device_type, device.device_id, &stream) != 0) {
        const nb::gil_scoped_acquire held;  // operators of compiled regions come without it
        nb::raise_python_error();
    }
    scope_ = std::make_unique<CudaScope>(
        stream, [device](std::int64_t bytes) { return torch_memory(device, bytes); });
}

}  // namespace torch

namespace python {

void bind_exchange(nb::module_& module) {
    module.def(
        "use_torch",
        [](nb::handle torch, nb::handle parameter, nb::handle bad_input, nb::handle follow) {
            tilewright::torch::Torch& state = tilewright::torch::state();
            const nb::object tensor = torch.attr("Tensor");
            state.api = tilewright::torch::find_api(tensor.attr("__dlpack_c_exchange_api__"));
            // Kept for as long as the process lives, like torch itself.
            state.tensor = reinterpret_cast<PyTypeObject*>(nb::object(tensor).release().ptr());
            state.parameter =
                reinterpret_cast<PyTypeObject*>(nb::borrow(parameter).release().ptr());
            const auto kept = [](nb::object object) { return object.release().ptr(); };
            state.empty_strided = kept(torch.attr("empty_strided"));
            state.empty_like = kept(torch.attr("empty_like"));
            state.num_threads = kept(torch.attr("get_num_threads"));
            state.follow_threads = kept(nb::borrow(follow));
            state.bad_input = kept(nb::borrow(bad_input));
            state.out_of_memory = kept(torch.attr("OutOfMemoryError"));
        },
        nb::arg("torch"), nb::arg("parameter"), nb::arg("bad_input"), nb::arg("follow_threads"),
        "Takes from the module torch what calls on its tensors need.");
}

}  // namespace python
}  // namespace tilewright
