// NumPy's .npy format, versions 1 to 3.
#pragma once

#include <ostream>
#include <string>

#include "run/byte_reader.h"

namespace tilewright::run {

/// Reads an array: little-endian bool, integers, f16, f32 or f64, in C or Fortran order (the result
/// is row-major either way). UserError if the file is not exactly one such array.
Tensor read_npy(ByteReader& file);

/// Writes version 1, in Fortran order by request.
void write_npy(std::ostream& stream, const std::string& file, const Tensor& tensor,
               bool fortran_order = false);

/// UserError if .npy cannot hold the dtype (bf16 and the 8-bit floats).
void check_npy_dtype(const std::string& file, DType dtype);

}  // namespace tilewright::run
