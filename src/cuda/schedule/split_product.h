// Products whose inner dimension is shared out among thread blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/function.h"

namespace tilewright::cuda::schedule {

/// A product as two kernels: each has the parameters of the original one and after them the Ref of
/// the sums of the parts, [parts, batch .., rows, columns].
struct SplitProduct {
    ir::Function parts;   ///< multiplies; the first grid axis counts the parts
    ir::Function finish;  ///< adds the parts in order, and does what follows the product
    ir::RefType sums;
};

/// Cuts the inner dimension of a kernel's only product into at most this many parts of whole
/// steps. Nothing where its form does not allow that: blocks that `mergeable_blocks` refuses, a
/// product that is not of whole rows and columns of arrays (at once or in a loop), a grid that
/// depends on the call, something else than elementwise operations after it.
std::optional<SplitProduct> split_product(const ir::Function& kernel, std::int64_t parts);

/// Into how many parts to cut it for speed; 1: not at all.
std::int64_t parts_of_product(const ir::Function& kernel, const std::string& arch);

}  // namespace tilewright::cuda::schedule
