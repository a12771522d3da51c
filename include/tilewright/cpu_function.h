// What a function of a shared library must be to stand in for a CUDA kernel on the CPU. Also C.
#pragma once

#include "tilewright/dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Runs on arrays in memory of the CPU: inputs, outputs and, if the kernel has it, the workspace
/// (bytes), row-major and without gaps. `attributes` point at the values of the attributes in
/// order, each of its C type: a bool is one byte, an enumerator and a dtype are int32_t, a struct
/// is itself. Returns NULL, or what went wrong: a text that lives until the next call.
/// May be called on many threads at once.
typedef const char* (*tw_cpu_function)(const DLTensor* arrays, int32_t num_arrays,
                                       const void* const* attributes);

#ifdef __cplusplus
}  // extern "C"
#endif
