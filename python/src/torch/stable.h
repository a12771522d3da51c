// PyTorch's stable C functions (torch/csrc/stable/c/shim.h), found at run time: operators whose
// kernels are C++, without torch at build or link time.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tilewright/dlpack.h"

namespace tilewright::torch::stable {

using Value = std::uint64_t;  ///< StableIValue: an operator's argument or result
using Kernel = void (*)(Value* stack, std::uint64_t num_inputs, std::uint64_t num_outputs);
using Status = std::int32_t;  ///< 0 if a function succeeded
struct TensorOpaque;
using TensorHandle = TensorOpaque*;  ///< owns a reference to a tensor

/// Those of torch's functions that are used here, under their names.
struct Functions {
    Status (*aoti_torch_library_init_impl)(const char* ns, const char* key, const char* file,
                                           std::uint32_t line, void** library);
    Status (*aoti_torch_library_impl)(void* library, const char* name, Kernel kernel);
    Status (*aoti_torch_delete_tensor_object)(TensorHandle);
    Status (*aoti_torch_new_uninitialized_tensor)(TensorHandle*);  ///< an undefined one
    Status (*aoti_torch_is_defined)(TensorHandle, bool*);
    Status (*aoti_torch_get_data_ptr)(TensorHandle, void**);
    Status (*aoti_torch_get_dim)(TensorHandle, std::int64_t*);
    Status (*aoti_torch_get_sizes)(TensorHandle, std::int64_t**);
    Status (*aoti_torch_get_strides)(TensorHandle, std::int64_t**);
    Status (*aoti_torch_get_dtype)(TensorHandle, std::int32_t*);
    Status (*aoti_torch_get_device_type)(TensorHandle, std::int32_t*);
    Status (*aoti_torch_get_device_index)(TensorHandle, std::int32_t*);
    Status (*aoti_torch_empty_strided)(std::int64_t ndim, const std::int64_t* sizes,
                                       const std::int64_t* strides, std::int32_t dtype,
                                       std::int32_t device_type, std::int32_t device_index,
                                       TensorHandle*);
    Status (*torch_list_size)(void* list, std::size_t*);
    Status (*torch_list_get_item)(void* list, std::size_t, Value*);
    Status (*torch_new_list_reserve_size)(std::size_t, void** list);
    Status (*torch_list_push_back)(void* list, Value);
    Status (*torch_delete_list)(void* list);
    Status (*torch_string_length)(void* string, std::size_t*);
    Status (*torch_string_c_str)(void* string, const char**);
    Status (*torch_delete_string)(void* string);
    Status (*torch_get_num_threads)(std::uint32_t*);
    bool (*aoti_torch_grad_mode_is_enabled)();
    /// Calls an operator: takes its arguments from the stack and leaves its results there.
    Status (*aoti_torch_call_dispatcher)(const char* name, const char* overload, Value* stack);
    /// Frees an optional argument; null before torch 2.13, where `delete` does.
    Status (*torch_delete_stable_ivalue)(Value*);
    /// Why a function of this thread failed; null before torch 2.13.
    const char* (*torch_exception_get_what_without_backtrace)();
};

/// Finds the functions; false if torch lacks one of them.
bool find_functions();
const Functions& functions();

/// Throws std::runtime_error if a function of torch failed.
void check(Status status, const char* what);

/// A library of kernels for a namespace and a dispatch key, kept for as long as the process lives.
void* make_library(const char* ns, const char* key);
void implement(void* library, const char* name, Kernel kernel);

/// A tensor.
class OwnedTensor {
  public:
    explicit OwnedTensor(Value value) : handle_(reinterpret_cast<TensorHandle>(value)) {}
    OwnedTensor(OwnedTensor&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
    OwnedTensor& operator=(OwnedTensor&&) = delete;
    ~OwnedTensor();

    bool is_defined() const;
    /// Its memory, shape and strides, which are borrowed.
    DLTensor view() const;
    /// Passes the reference on.
    Value release();

    static OwnedTensor empty(const std::vector<std::int64_t>& shape,
                             const std::vector<std::int64_t>& strides, DLDataType dtype,
                             DLDevice device);

  private:
    TensorHandle handle_;
};

/// An operator's arguments, taken from its stack: a list of tensors, one of numbers or flags, and
/// an optional argument.
std::vector<OwnedTensor> take_list(Value list);
std::vector<Value> take_values(Value list);
std::optional<Value> take_optional(Value argument);

class OwnedString {
  public:
    explicit OwnedString(Value value) : string_(reinterpret_cast<void*>(value)) {}
    OwnedString(const OwnedString&) = delete;
    OwnedString& operator=(const OwnedString&) = delete;
    ~OwnedString() { functions().torch_delete_string(string_); }
    std::string_view view() const;

  private:
    void* string_;
};

/// Puts tensors into a new list.
Value make_list(std::vector<OwnedTensor> tensors);

}  // namespace tilewright::torch::stable
