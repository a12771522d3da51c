// The type of functions in shared libraries that replace a CUDA kernel on the CPU. Also C.
#pragma once

#include "tilewright/dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Runs on arrays in CPU memory, row-major and without gaps: inputs, outputs and, if the kernel has
/// one, the workspace (bytes). `attributes` point to the attributes' values in order, each of its C
/// type: a bool is one byte, an enumerator or a dtype an int32_t, a struct itself. Returns NULL, or
/// an error message that stays valid until the next call. May be called on many threads at once.
typedef const char* (*tw_cpu_function)(const DLTensor* arrays, int32_t num_arrays,
                                       const void* const* attributes);

#ifdef __cplusplus
}  // extern "C"
#endif
