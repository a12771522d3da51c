// 1 + erf(x) where it is rounded to 16 bits, as in gelu.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct ErrorFunctionsReport {
    int sums = 0;  ///< replaced
    bool changed() const { return sums > 0; }
};

/// Replaces 1 + erf(x) of f32 by 2^-Q(|x|), or 2 minus it for x from 0 on, with a polynomial Q and
/// the approximate exp2: half of the instructions of erf and the sum on a GPU. The absolute error
/// is below 2^-20. For negative x the relative one is below 2^-10 down to -4.2, where the sum in
/// f32 is 0; beyond it grows until the result, below 2^-126, is 0. docs/explanation/numerics.md has
/// the derivation.
///
/// Only where products and sums with other values, which are no constants, signs or masks, carry it
/// to casts to floats of at most 16 bits, which round by 2^-11 or more of what they are given.
ErrorFunctionsReport error_functions(Function& function);

}  // namespace tilewright::ir
