// Random mods by seed: scalar functions with gathers, branches and loops, and the arrays they read.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/function.h"
#include "tests/support/googletest.h"
#include "tilewright/tensor.h"

namespace tilewright::testing {

/// (b, h, q, kv as i64, four arrays) -> one scalar: bool when `mask`, else of any dtype.
ir::Function random_mod(std::uint64_t seed, bool mask);
/// Arrays for its four Refs: ids i32 (ascending), flags bool of rank 2 (strided), table f32 with
/// NaNs, starts i64.
std::vector<Tensor> random_mod_arrays(std::uint64_t seed);

}  // namespace tilewright::testing
