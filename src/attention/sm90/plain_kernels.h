// The Hopper engine's kernels without a mod that are worth compiling before the first call.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/runtime/compiler.h"
#include "tilewright/dtype.h"

namespace tilewright::attn::sm90 {

/// What calls without mods may need for any of these head dimensions (of queries, keys and values)
/// and types, forward and backward, each unit once: no mask, causal, a causal window, masks as
/// data, packed sequences, groups of query heads, few query rows. Needs no GPU.
std::vector<cuda::CompileRequest> plain_kernels(const std::vector<int>& head_dims,
                                                const std::vector<DType>& dtypes);

}  // namespace tilewright::attn::sm90
