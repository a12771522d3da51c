// Compilations that no call waits for yet (see compiler.h).
#pragma once

#include <cstddef>

#include "cuda/runtime/compiler.h"

namespace tilewright::cuda {

/// Is a request's cubin in memory, in the library's kernels or on disk, so that `cubin_of` compiles
/// nothing and waits for nothing?
bool is_compiled(const CompileRequest& request);

/// Does a thread of `compile_in_background` still compile a request?
bool is_compiling(const CompileRequest& request);

/// How many threads of `compile_in_background` are at work.
std::size_t background_compilations();

}  // namespace tilewright::cuda
