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
    PyObject* empty_strided = nullptr;
    PyObject* bad_input = nullptr;  ///< the class of errors about arguments
};
const Torch& torch();

/// Views of the tensors of one call, which their objects keep alive.
class Arguments {
  public:
    /// Adds a tensor; false if the object is no plain one of the CPU or of a GPU: of a subclass,
    /// fake, a negative view.
    bool add(nb::handle object);

    std::size_t size() const { return views_.size(); }
    const std::vector<DLTensor>& views() const { return views_; }
    /// dtype, device, shape and strides of each.
    const std::vector<std::int64_t>& types() const { return types_; }
    /// For what else a call depends on.
    void add_type(std::int64_t word) { types_.push_back(word); }
    std::vector<Tensor> tensors() const;
    std::vector<void*> addresses() const;

  private:
    std::vector<DLTensor> views_;
    std::vector<std::int64_t> types_;
};

/// A result, made by torch's allocator.
struct Result {
    nb::object object;
    DLTensor view;
};
/// `arguments`: those of torch.empty_strided, ((size, stride), {dtype, device}).
Result make_result(nb::handle arguments);

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
