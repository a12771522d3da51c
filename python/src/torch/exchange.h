// PyTorch tensors through DLPack's exchange functions, without torch at build or link time.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tilewright/dlpack.h"
#include "tilewright/error.h"
#include "tilewright/run.h"
#include "tilewright/tensor.h"

namespace tilewright::torch {

namespace nb = nanobind;

/// What `bind` takes from the module torch, once: exchange functions and tensor constructors.
struct Torch {
    const DLPackExchangeAPI* api = nullptr;
    PyTypeObject *tensor = nullptr, *parameter = nullptr;
    PyObject *empty_strided = nullptr, *empty_like = nullptr;
    PyObject* num_threads = nullptr;     ///< torch.get_num_threads
    PyObject* follow_threads = nullptr;  ///< adopts a new number of torch's threads
    PyObject* bad_input = nullptr;       ///< the error class for bad arguments
    PyObject* out_of_memory = nullptr;   ///< torch.OutOfMemoryError
};
const Torch& torch();

/// torch's allocator has no memory.
class AllocatorOutOfMemory : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// An attribute, its name from PyUnicode_InternFromString.
inline nb::object attribute(nb::handle object, PyObject* name) {
    nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), name));
    if (!value.is_valid()) nb::raise_python_error();
    return value;
}

/// The result of a Python function without arguments.
inline nb::object value_of(PyObject* function) {
    nb::object value = nb::steal(PyObject_CallNoArgs(function));
    if (!value.is_valid()) nb::raise_python_error();
    return value;
}

/// Views of the tensors of one call, which their objects keep alive.
class Arguments {
  public:
    Arguments() {
        objects_.reserve(kUsual);
        views_.reserve(kUsual);
        types_.reserve(12 * kUsual);
    }
    /// Adds a tensor; false unless the object is a plain one on the CPU or a GPU: not of a
    /// subclass, fake, or a negative view.
    bool add(nb::handle object);
    /// The same with its view.
    void add(nb::handle object, const DLTensor& view);
    /// The view of a plain tensor, without adding it.
    static bool view_of(nb::handle object, DLTensor& view);

    std::size_t size() const { return views_.size(); }
    const std::vector<nb::handle>& objects() const { return objects_; }
    const std::vector<DLTensor>& views() const { return views_; }
    /// dtype, device, shape and strides of each.
    const std::vector<std::int64_t>& types() const { return types_; }
    /// Makes the objects of operands that were added without one; the caller keeps them.
    std::vector<nb::object> make_objects();
    /// Adds anything else that a call depends on.
    void add_type(std::int64_t word) { types_.push_back(word); }
    std::vector<Tensor> tensors() const;
    std::vector<void*> addresses() const;

  private:
    static constexpr std::size_t kUsual = 8;  ///< tensors; each has about 11 words of types
    std::vector<nb::handle> objects_;
    std::vector<DLTensor> views_;
    std::vector<std::int64_t> types_;
};

/// A result, made by torch's allocator.
struct Result {
    nb::object object;
    DLTensor view;
};
/// `arguments`: those of torch.empty_strided, ((size, stride), {dtype, device}); `like`: a dense
/// tensor with the same properties, from which torch makes the result faster, or null.
Result make_result(nb::handle arguments, nb::handle like);

/// Makes torch.set_num_threads apply to the library's threads too: adopts torch's number if it has
/// changed.
void follow_threads(long number);

Tensor tensor_of(const DLTensor& view);
void* address_of(const DLTensor& view);

/// While it lives, this thread's GPU work goes to torch's stream on a device, and temporary memory
/// is torch's. Does nothing on the CPU.
class TorchScope {
  public:
    explicit TorchScope(DLDevice device);

  private:
    std::unique_ptr<CudaScope> scope_;
};

/// The result of a C function of Python, with exceptions as Python's errors.
template <typename Body>
PyObject* without_exceptions(Body body) {
    try {
        return body().release().ptr();
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const nb::builtin_exception& error) {
        PyErr_SetString(PyExc_TypeError, error.what());
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

/// The text of an error about arguments, under the name of torch's function.
std::string of_front_end(std::string_view text);

/// Runs `body` without the GIL; argument errors become the front end's class, and a lack of memory
/// torch's.
template <typename Body>
void run_released(Body body) {
    std::string message;
    PyObject* type = torch().bad_input;
    {
        const nb::gil_scoped_release released;
        try {
            body();
            return;
        } catch (const UserError& error) {
            message = of_front_end(error.what());
        } catch (const AllocatorOutOfMemory& error) {
            message = error.what();
            type = torch().out_of_memory;
        }
    }
    PyErr_SetString(type, message.c_str());
    nb::raise_python_error();
}

}  // namespace tilewright::torch
