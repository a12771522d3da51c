// Whether two tensors share elements.
#pragma once

#include "tilewright/tensor.h"

namespace tilewright::run {

/// True when an element of one may be an element of the other; undefined tensors have none.
bool overlap(const Tensor& a, const Tensor& b);

/// True when two indices of the tensor may be one element, as of a broadcast.
bool overlaps_itself(const Tensor& tensor);

}  // namespace tilewright::run
