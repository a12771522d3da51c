// A kernel over a batch: one more grid axis, one more dimension for the arrays that have it.
#pragma once

#include <vector>

#include "ir/function.h"

namespace tilewright::ir {

/// Runs `kernel` once per element of a batch of `size`: a leading grid axis counts them, and each
/// global Ref with `mapped` (one flag per global Ref, in order) gets a leading dimension of that
/// extent. Mods are inlined first. UserError where Refs of one alias group are mapped differently.
void add_batch(Function& kernel, const std::vector<bool>& mapped, std::int64_t size);

}  // namespace tilewright::ir
