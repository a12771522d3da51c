// The Hopper engine's kernels without a mod that are worth compiling before anybody calls them.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/runtime/compiler.h"
#include "tilewright/dtype.h"

namespace tilewright::attn::sm90 {

/// What plain calls with one of these head dimensions (of queries, keys and values) and types may
/// need, forward and backward, each unit once: no mask, causal, a causal window and masks as data;
/// packed sequences; groups of query heads; few query rows. Needs no GPU.
std::vector<cuda::CompileRequest> plain_kernels(const std::vector<int>& head_dims,
                                                const std::vector<DType>& dtypes);

}  // namespace tilewright::attn::sm90
