// Tensors of PyTorch through DLPack's exchange functions: no torch at build or link time.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tilewright/dlpack.h"
#include "tilewright/error.h"
#include "tilewright/run.h"
#include "tilewright/tensor.h"

namespace tilewright::torch {

namespace nb = nanobind;

/// What `bind` takes from the module torch, once: its exchange functions and what makes tensors.
struct Torch {
    const DLPackExchangeAPI* api = nullptr;
    PyTypeObject *tensor = nullptr, *parameter = nullptr;
    PyObject *empty_strided = nullptr, *empty_like = nullptr;
    PyObject* num_threads = nullptr;     ///< torch.get_num_threads
    PyObject* follow_threads = nullptr;  ///< takes a new number of torch's threads over
    PyObject* bad_input = nullptr;       ///< the class of errors about arguments
};
const Torch& torch();

/// An attribute, by a name from PyUnicode_InternFromString.
inline nb::object attribute(nb::handle object, PyObject* name) {
    nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), name));
    if (!value.is_valid()) nb::raise_python_error();
    return value;
}

/// What a function of Python without arguments returns.
inline nb::object value_of(PyObject* function) {
    nb::object value = nb::steal(PyObject_CallNoArgs(function));
    if (!value.is_valid()) nb::raise_python_error();
    return value;
}

/// Views of the tensors of one call, which their objects keep alive.
class Arguments {
  public:
    /// Adds a tensor; false if the object is no plain one of the CPU or of a GPU: of a subclass,
    /// fake, a negative view.
    bool add(nb::handle object);
    /// The same with its view.
    void add(nb::handle object, const DLTensor& view);
    /// The view of a plain tensor, not added.
    static bool view_of(nb::handle object, DLTensor& view);

    std::size_t size() const { return views_.size(); }
    const std::vector<nb::handle>& objects() const { return objects_; }
    const std::vector<DLTensor>& views() const { return views_; }
    /// dtype, device, shape and strides of each.
    const std::vector<std::int64_t>& types() const { return types_; }
    /// For what else a call depends on.
    void add_type(std::int64_t word) { types_.push_back(word); }
    std::vector<Tensor> tensors() const;
    std::vector<void*> addresses() const;

  private:
    std::vector<nb::handle> objects_;
    std::vector<DLTensor> views_;
    std::vector<std::int64_t> types_;
};

/// A result, made by torch's allocator.
struct Result {
    nb::object object;
    DLTensor view;
};
/// `arguments`: those of torch.empty_strided, ((size, stride), {dtype, device}); `like`: a tensor
/// without gaps that has all of them, which torch copies them from sooner, or null.
Result make_result(nb::handle arguments, nb::handle like);

Tensor tensor_of(const DLTensor& view);
void* address_of(const DLTensor& view);

/// Until it ends, this thread's GPU work goes to torch's stream of a device, and temporary memory
/// is torch's. Nothing on the CPU.
class TorchScope {
  public:
    explicit TorchScope(DLDevice device);

  private:
    std::unique_ptr<CudaScope> scope_;
};

/// Runs `body`, without the GIL; errors about arguments become the front end's class.
template <typename Body>
void run_released(Body body) {
    std::string message;
    {
        const nb::gil_scoped_release released;
        try {
            body();
            return;
        } catch (const UserError& error) {
            message = error.what();
        }
    }
    PyErr_SetString(torch().bad_input, message.c_str());
    nb::raise_python_error();
}

}  // namespace tilewright::torch
