// CUDA text of elements: types, literals, elementwise operations.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ir/op.h"

namespace tilewright::cuda {

/// The device type of an element in memory ("bf16"), and in a register ("f32").
std::string storage_type(DType dtype);
std::string register_type(DType dtype);

/// An element as a literal of its register type.
std::string literal(DType dtype, std::uint64_t bits);

/// An elementwise operation on elements of `in` in registers, before rounding to a narrow `out`.
std::string element_text(ir::Op op, bool approx, DType in, DType out,
                         std::span<const std::string> x);

/// Must the result of an operation be rounded to its narrow element type?
bool is_rounded(ir::Op op, DType out);

}  // namespace tilewright::cuda
