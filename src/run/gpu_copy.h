// How elements are copied between strided arrays of one GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "tilewright/run.h"

namespace tilewright::run {

/// Two views of the elements of a copy, and the block that a program copies.
struct CopyPlan {
    /// Dimensions that are contiguous in both arrays are one, the others are in the order of the
    /// target's memory. Where elements lie side by side in different dimensions, that of the source
    /// is the second to last.
    Tensor target, source;
    std::vector<std::int64_t> block;  ///< places along each dimension, powers of two
};

/// The plan for tensors of one shape, which have elements.
CopyPlan plan_copy(const Tensor& target, const Tensor& source);

/// The call that copies plan.source to plan.target; also others with that block and target dtype.
Call copy_call(const CopyPlan& plan);

}  // namespace tilewright::run
