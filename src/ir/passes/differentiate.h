// Reverse-mode derivatives of functions that yield values.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ir/function.h"

namespace tilewright::ir {

/// What to differentiate by.
struct DifferentiateOptions {
    std::vector<bool> scalars;  ///< one per parameter that is not a Ref, in order
    std::vector<bool> refs;     ///< one per Ref parameter: loads from it have gradients
};

/// A load on which the result depends: its gradient belongs to the elements that it read.
struct GatherGradient {
    std::size_t ref = 0;               ///< among the Ref parameters
    std::vector<std::size_t> indices;  ///< results that hold the i64 index of each dimension
    std::size_t value = 0;             ///< result that holds the gradient
};

struct DifferentiateReport {
    std::vector<GatherGradient> gathers;  ///< in the order of the loads
    int branches = 0;                     ///< if_else turned into selects
    int unrolled = 0;                     ///< loop iterations unrolled
    /// Why the function has no derivative; it is then of no use.
    std::string refusal;
    bool changed() const { return true; }
};

/// Replaces a function of values (a mod) by its derivative. After the parameters that are not Refs
/// come a cotangent for each old result (f16, bf16 and f8 as f32), then the Refs. The results are
/// the gradient of each chosen scalar, then indices and gradient of each gather from a chosen Ref:
/// the caller adds these to an array, because several programs may add to one element.
///
/// Where a select, branch, min, max or clamp blocks a gradient, a select after all products removes
/// it, so that an infinite derivative of the branch not taken gives 0 and not NaN. Gradients of
/// narrow floats are f32. Integers, comparisons and rounding have none. Calls are inlined, branches
/// become selects, loops with constant bounds are unrolled. An op without a derivative, such as
/// while loops, loops with other bounds and stores, is named in the report.
DifferentiateReport try_differentiate(Function& function, const DifferentiateOptions& options);
/// The same; UserError names an op without a derivative.
DifferentiateReport differentiate(Function& function, const DifferentiateOptions& options);

}  // namespace tilewright::ir
