// PyTorch's stable C functions, found at run time.
#include "torch/stable.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace tilewright::torch::stable {
namespace {

struct DType {
    const char* getter;  ///< torch's function that returns its number
    DLDataType type;
    std::int32_t number = -1;
};

// Only those of captures, operands and results.
std::array dtypes{
    DType{"aoti_torch_dtype_float32", {kDLFloat, 32, 1}},
    DType{"aoti_torch_dtype_float64", {kDLFloat, 64, 1}},
    DType{"aoti_torch_dtype_float16", {kDLFloat, 16, 1}},
    DType{"aoti_torch_dtype_bfloat16", {kDLBfloat, 16, 1}},
    DType{"aoti_torch_dtype_bool", {kDLBool, 8, 1}},
    DType{"aoti_torch_dtype_int8", {kDLInt, 8, 1}},
    DType{"aoti_torch_dtype_int16", {kDLInt, 16, 1}},
    DType{"aoti_torch_dtype_int32", {kDLInt, 32, 1}},
    DType{"aoti_torch_dtype_int64", {kDLInt, 64, 1}},
    DType{"aoti_torch_dtype_uint8", {kDLUInt, 8, 1}},
    DType{"aoti_torch_dtype_uint16", {kDLUInt, 16, 1}},
    DType{"aoti_torch_dtype_uint32", {kDLUInt, 32, 1}},
    DType{"aoti_torch_dtype_uint64", {kDLUInt, 64, 1}},
    DType{"aoti_torch_dtype_float8_e4m3fn", {kDLFloat8_e4m3fn, 8, 1}},
    DType{"aoti_torch_dtype_float8_e5m2", {kDLFloat8_e5m2, 8, 1}},
};
std::int32_t cpu_kind = -1, cuda_kind = -1;  // torch's numbers for devices
Functions found;

bool find_all(void* library) {
    bool complete = true;
    const auto find = [&](auto& function, const char* name) {
        void* const symbol = dlsym(library, name);
        complete = complete && symbol != nullptr;
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    };
#define TW_FIND(name) find(found.name, #name)
    TW_FIND(aoti_torch_library_init_impl);
    TW_FIND(aoti_torch_library_impl);
    TW_FIND(aoti_torch_delete_tensor_object);
    TW_FIND(aoti_torch_new_uninitialized_tensor);
    TW_FIND(aoti_torch_is_defined);
    TW_FIND(aoti_torch_get_data_ptr);
    TW_FIND(aoti_torch_get_dim);
    TW_FIND(aoti_torch_get_sizes);
    TW_FIND(aoti_torch_get_strides);
    TW_FIND(aoti_torch_get_dtype);
    TW_FIND(aoti_torch_get_device_type);
    TW_FIND(aoti_torch_get_device_index);
    TW_FIND(aoti_torch_empty_strided);
    TW_FIND(torch_list_size);
    TW_FIND(torch_list_get_item);
    TW_FIND(torch_new_list_reserve_size);
    TW_FIND(torch_list_push_back);
    TW_FIND(torch_delete_list);
    TW_FIND(torch_string_length);
    TW_FIND(torch_string_c_str);
    TW_FIND(torch_delete_string);
    TW_FIND(torch_get_num_threads);
    TW_FIND(aoti_torch_grad_mode_is_enabled);
    TW_FIND(aoti_torch_call_dispatcher);
#undef TW_FIND
    found.torch_exception_get_what_without_backtrace = reinterpret_cast<const char* (*)()>(
        dlsym(library, "torch_exception_get_what_without_backtrace"));
    found.torch_delete_stable_ivalue =
        reinterpret_cast<Status (*)(Value*)>(dlsym(library, "torch_delete_stable_ivalue"));
    const auto number = [&](const char* name) {
        std::int32_t (*get)() = nullptr;
        find(get, name);
        return get ? get() : -1;
    };
    for (DType& dtype : dtypes) dtype.number = number(dtype.getter);
    cpu_kind = number("aoti_torch_device_type_cpu");
    cuda_kind = number("aoti_torch_device_type_cuda");
    return complete;
}

/// A list of torch's with its tensors, for as long as nobody takes them.
class OwnedList {
  public:
    explicit OwnedList(void* list) : list_(list) {}
    OwnedList(const OwnedList&) = delete;
    OwnedList& operator=(const OwnedList&) = delete;
    ~OwnedList() {
        if (list_ == nullptr) return;
        const Functions& torch = functions();
        std::size_t size = 0;
        Value element = 0;
        if (torch.torch_list_size(list_, &size) != 0) size = 0;
        for (; taken_ < size && torch.torch_list_get_item(list_, taken_, &element) == 0; ++taken_)
            const OwnedTensor unused(element);
        torch.torch_delete_list(list_);
    }

    std::size_t size() const {
        std::size_t size = 0;
        check(functions().torch_list_size(list_, &size), "pass a list of tensors");
        return size;
    }
    OwnedTensor take_next() {
        Value element = 0;
        check(functions().torch_list_get_item(list_, taken_, &element), "pass a list of tensors");
        ++taken_;
        return OwnedTensor(element);
    }
    void add(OwnedTensor tensor) {
        // The list has taken the tensor even where it cannot grow.
        check(functions().torch_list_push_back(list_, tensor.release()), "pass a list of tensors");
    }
    Value release() { return reinterpret_cast<Value>(std::exchange(list_, nullptr)); }

  private:
    void* list_;
    std::size_t taken_ = 0;
};

}  // namespace

bool find_functions() {
    // Loaded by torch already, but not for all to see.
    void* const library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return library && find_all(library);
}

const Functions& functions() {
    return found;
}

void check(Status status, const char* what) {
    if (status == 0) return;
    const auto reason = functions().torch_exception_get_what_without_backtrace;
    throw std::runtime_error(
        std::string("[tilewright.torch] expected torch to ") + what + " but it failed" +
        (reason != nullptr ? std::string(": ") + reason() : "; what torch printed says why"));
}

void* make_library(const char* ns, const char* key) {
    void* library = nullptr;
    check(functions().aoti_torch_library_init_impl(ns, key, "operators.cpp", 0, &library),
          "register operators");
    return library;
}

void implement(void* library, const char* name, Kernel kernel) {
    check(functions().aoti_torch_library_impl(library, name, kernel), "register operators");
}

OwnedTensor::~OwnedTensor() {
    if (handle_) functions().aoti_torch_delete_tensor_object(handle_);
}

Value OwnedTensor::release() {
    const auto value = reinterpret_cast<Value>(handle_);
    handle_ = nullptr;
    return value;
}

bool OwnedTensor::is_defined() const {
    bool defined = false;
    check(functions().aoti_torch_is_defined(handle_, &defined), "describe a tensor");
    return defined;
}

DLTensor OwnedTensor::view() const {
    const Functions& torch = functions();
    DLTensor view{};
    std::int64_t ndim = 0;
    std::int32_t dtype = -1, kind = -1, index = 0;
    check(torch.aoti_torch_get_data_ptr(handle_, &view.data), "describe a tensor");
    check(torch.aoti_torch_get_dim(handle_, &ndim), "describe a tensor");
    check(torch.aoti_torch_get_sizes(handle_, &view.shape), "describe a tensor");
    check(torch.aoti_torch_get_strides(handle_, &view.strides), "describe a tensor");
    check(torch.aoti_torch_get_dtype(handle_, &dtype), "describe a tensor");
    check(torch.aoti_torch_get_device_type(handle_, &kind), "describe a tensor");
    check(torch.aoti_torch_get_device_index(handle_, &index), "describe a tensor");
    view.ndim = static_cast<std::int32_t>(ndim);
    view.device = kind == cuda_kind ? DLDevice{kDLCUDA, index} : DLDevice{kDLCPU, 0};
    for (const DType& known : dtypes) {
        if (known.number == dtype) {
            view.dtype = known.type;
            return view;
        }
    }
    throw std::runtime_error(
        "[tilewright.torch] expected real numbers, integers or bools in a tensor");
}

OwnedTensor OwnedTensor::empty(const std::vector<std::int64_t>& shape,
                               const std::vector<std::int64_t>& strides, DLDataType dtype,
                               DLDevice device) {
    const auto known = std::find_if(std::begin(dtypes), std::end(dtypes), [&](const DType& each) {
        return each.type.code == dtype.code && each.type.bits == dtype.bits;
    });
    if (known == std::end(dtypes)) {
        throw std::runtime_error(
            "[tilewright.torch] expected a result of real numbers, integers or bools");
    }
    TensorHandle made = nullptr;
    check(functions().aoti_torch_empty_strided(
              static_cast<std::int64_t>(shape.size()), shape.data(), strides.data(), known->number,
              device.device_type == kDLCUDA ? cuda_kind : cpu_kind, device.device_id, &made),
          "allocate a result");
    return OwnedTensor(reinterpret_cast<Value>(made));
}

std::vector<OwnedTensor> take_list(Value list) {
    OwnedList owned(reinterpret_cast<void*>(list));
    std::vector<OwnedTensor> tensors;
    const std::size_t size = owned.size();
    tensors.reserve(size + 3);
    for (std::size_t i = 0; i < size; ++i) tensors.push_back(owned.take_next());
    return tensors;
}

std::vector<Value> take_values(Value list) {
    const Functions& torch = functions();
    void* const object = reinterpret_cast<void*>(list);
    std::size_t size = 0;
    Status status = torch.torch_list_size(object, &size);
    std::vector<Value> values(size);
    for (std::size_t i = 0; i < size && status == 0; ++i)
        status = torch.torch_list_get_item(object, i, &values[i]);
    torch.torch_delete_list(object);
    check(status, "pass a list");
    return values;
}

std::optional<Value> take_optional(Value argument) {
    if (argument == 0) return std::nullopt;
    auto* const place = reinterpret_cast<Value*>(argument);
    const Value value = *place;
    if (functions().torch_delete_stable_ivalue != nullptr)
        functions().torch_delete_stable_ivalue(place);
    else
        delete place;
    return value;
}

std::string_view OwnedString::view() const {
    std::size_t length = 0;
    const char* text = nullptr;
    check(functions().torch_string_length(string_, &length), "pass a string");
    check(functions().torch_string_c_str(string_, &text), "pass a string");
    return {text, length};
}

Value make_list(std::vector<OwnedTensor> tensors) {
    void* list = nullptr;
    check(functions().torch_new_list_reserve_size(tensors.size(), &list), "pass a list of tensors");
    OwnedList owned(list);
    for (OwnedTensor& tensor : tensors) owned.add(std::move(tensor));
    return owned.release();
}

}  // namespace tilewright::torch::stable
