// Zeros that recordings hold.
#pragma once

#include "tilewright/tensor.h"

namespace tilewright::run {

/// Zeros in a tensor without gaps. Unlike Tensor::fill they can be recorded on a CPU: then a kernel
/// writes them, which a run of the recording launches again.
void clear(const Tensor& tensor);

}  // namespace tilewright::run
