// Tensors in files: NumPy's .npy and .safetensors.
#pragma once

#include <map>
#include <string>

#include "tilewright/compiler.h"
#include "tilewright/tensor.h"

namespace TW_API tilewright {

// Files are read whole into new row-major tensors in CPU memory and never trusted: UserError when a
// file does not exist or any part of it is malformed. Writing goes to a temporary file beside the
// target, which is renamed once it is complete: readers see the old file or the new one. UserError,
// with the system's reason, when that fails. Tensors may be on a GPU and have any strides.

/// The array in a .npy file of version 1 to 3: little-endian bool, integers, f16, f32 or f64, in C
/// or Fortran order.
Tensor load_npy(const std::string& path);
/// Writes version 1. UserError for bf16 and 8-bit floats, which NumPy lacks.
void save_npy(const std::string& path, const Tensor& tensor);

/// All tensors of a .safetensors file, by name.
std::map<std::string, Tensor> load_safetensors(const std::string& path);
/// One tensor of the file; for an unknown name the UserError lists those that exist.
Tensor load_safetensors(const std::string& path, const std::string& name);
/// Writes these tensors, replacing all that the file held.
void save_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors);

}  // namespace tilewright
