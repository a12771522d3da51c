// A kernel over a batch: an additional grid axis, and a dimension of the arrays that vary.
#pragma once

#include <vector>

#include "ir/function.h"

namespace tilewright::ir {

/// Makes `kernel` run once for each element of a batch of `size`: a leading grid axis counts them,
/// and each global Ref whose flag in `mapped` is set gets a leading dimension of that extent. Mods
/// are inlined first. UserError when Refs of one alias group are mapped differently.
void add_batch(Function& kernel, const std::vector<bool>& mapped, std::int64_t size);

}  // namespace tilewright::ir
