// The text of what reductions and scans have in common.
#pragma once

#include <string>

#include "ir/op.h"
#include "tilewright/dtype.h"

namespace tilewright::cuda::schedule {

/// Two elements combined, and the element that changes no other one.
std::string combined(ir::Reduction kind, DType dtype, const std::string& a, const std::string& b);
std::string neutral(ir::Reduction kind, DType dtype);
/// What another lane has.
std::string shuffled(const char* instruction, DType dtype, const std::string& value,
                     const std::string& lane);

}  // namespace tilewright::cuda::schedule
