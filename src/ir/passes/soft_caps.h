// tanh where its relative error does not matter, as in a soft cap of scores.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct SoftCapsReport {
    int functions = 0;  ///< replaced
    int divisions = 0;  ///< replaced by `exact_soft_caps`
    bool changed() const { return functions + divisions > 0; }
};

/// Replaces tanh(x) of f32 by 2 logistic(2 x) - 1 with the approximate logistic function, which
/// takes fewer instructions on a GPU. The absolute error is below 2^-20; near 0 the relative one
/// has no bound. So every reader must multiply by a constant of at most 128 or by tanh(x) itself,
/// or add a constant.
///
/// A function that changes has its derivatives 1 - t^2 of such a tanh t as one multiply-add,
/// multiplications by reciprocals in place of divisions of f32 by constants, and the constant
/// factors of its products of f32 joined: each takes an error of at most 2^-23 of itself.
SoftCapsReport soft_caps(Function& function);

/// The same with an exact tanh, for CPUs: in a function with a soft cap, divisions of f32 by
/// constants become multiplications by reciprocals where only soft caps and the function's results
/// read the quotient, and the constant factors of products are joined. Each change takes a relative
/// error of at most 2^-23, which soft caps and products do not increase.
SoftCapsReport exact_soft_caps(Function& function);

}  // namespace tilewright::ir
