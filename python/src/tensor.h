// NumPy arrays as tensors and back, in C++.
#pragma once

#include <optional>

#include "bindings.h"
#include "tilewright/tensor.h"

namespace tilewright::python {

/// A tensor on the memory of a NumPy array; none for other objects, for arrays that need a copy,
/// and for dtypes without the buffer protocol (ml_dtypes). Sets `writable`.
std::optional<Tensor> tensor_of_numpy(nb::handle array, bool& writable);
/// A NumPy array on the tensor's memory; invalid for GPU memory and dtypes that NumPy lacks.
nb::object numpy_of_tensor(const Tensor& tensor);

}  // namespace tilewright::python
