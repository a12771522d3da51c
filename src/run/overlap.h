// Whether two tensors share elements.
#pragma once

#include "tilewright/tensor.h"

namespace tilewright::run {

/// True when an element of one may be an element of the other; undefined tensors have none.
bool overlap(const Tensor& a, const Tensor& b);

}  // namespace tilewright::run
