// NumPy's .npy format, versions 1 to 3.
#pragma once

#include <ostream>
#include <string>

#include "run/byte_reader.h"

namespace tilewright::run {

/// Reads one array: little-endian bool, integers, f16, f32 and f64, in C or Fortran order (the
/// result is row-major either way). UserError when the file is not such an array from its first
/// byte to its last.
Tensor read_npy(ByteReader& file);

/// Writes version 1, in Fortran order by request.
void write_npy(std::ostream& stream, const std::string& file, const Tensor& tensor,
               bool fortran_order = false);

/// UserError when .npy cannot hold the dtype (bf16 and the 8-bit floats).
void check_npy_dtype(const std::string& file, DType dtype);

}  // namespace tilewright::run
