// Dtype promotion and shape broadcasting of the kernel language.
#pragma once

#include <span>
#include <string>

#include "ir/type.h"
#include "tilewright/lang/tile.h"

namespace tilewright::lang {

/// The dtype in which two traced values meet, by JAX's lattice. UserError when there is none (f8
/// with another float).
DType promote(DType a, DType b);

/// The dtype that a literal takes beside a value of dtype `other`.
DType literal_dtype(const Operand& literal, DType other);

/// The dtype of a literal on its own: i32 (i64 when it does not fit), f32 (f64 likewise), bool.
DType literal_dtype(const Operand& literal);

/// NumPy's broadcast of two shapes. UserError "[op] ..." when they do not agree; `what` names them.
ir::Shape broadcast_shapes(const ir::Shape& a, const ir::Shape& b, const char* op,
                           const std::string& what = "shapes");

/// A shape in a message, "[]" for a scalar.
std::string shape_text(const ir::Shape& shape);

/// Is the broadcast of both shapes the second one?
bool broadcasts_to(const ir::Shape& from, const ir::Shape& shape);

}  // namespace tilewright::lang
