// Zeros that can be recorded.
#pragma once

#include "tilewright/tensor.h"

namespace tilewright::run {

/// Writes zeros to a tensor without gaps. Unlike Tensor::fill, this can be recorded on a CPU: then
/// a kernel writes them, which repeats of the recording launch again.
void clear(const Tensor& tensor);

}  // namespace tilewright::run
