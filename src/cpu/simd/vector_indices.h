// The vector kernels for accesses by indices, by target.
#pragma once

#include "cpu/simd/index_kernels.h"
#include "cpu/simd/vector.h"

namespace tilewright::cpu {

/// nullptr where this build has none.
const IndexKernels* vector_index_kernels(Target target);

}  // namespace tilewright::cpu
