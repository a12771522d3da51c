// Loops over the inner dimension of a product as one dot.
#pragma once

#include "ir/function.h"

namespace tilewright::cuda::schedule {

/// An optimised kernel in which a loop that adds up products of consecutive slices of two arrays,
/// from zero, is one dot of the whole slices. The same kernel where there is no such loop.
ir::Function whole_product(const ir::Function& kernel);

}  // namespace tilewright::cuda::schedule
