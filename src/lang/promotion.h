// Dtype promotion and shape broadcasting of the kernel language.
#pragma once

#include <span>
#include <string>

#include "ir/type.h"
#include "tilewright/lang/tile.h"

namespace tilewright::lang {

/// The common dtype of two traced values by JAX's lattice. UserError if there is none (f8 with
/// another float).
DType promote(DType a, DType b);

/// The common dtype of a literal and a value of dtype `other`.
DType literal_dtype(const Operand& literal, DType other);

/// The dtype of a literal by itself: i32 (i64 if it does not fit), f32 (f64 likewise) or bool.
DType literal_dtype(const Operand& literal);

/// NumPy's broadcast of two shapes. UserError "[op] ..." if there is none; `what` names the shapes.
ir::Shape broadcast_shapes(const ir::Shape& a, const ir::Shape& b, const char* op,
                           const std::string& what = "shapes");

/// A shape for messages; "[]" for a scalar.
std::string shape_text(const ir::Shape& shape);

/// Whether the first shape broadcasts to the second one.
bool broadcasts_to(const ir::Shape& from, const ir::Shape& shape);

}  // namespace tilewright::lang
